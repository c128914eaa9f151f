"""Attention blocks of transformers as references: what a block of a tiny random model got, and what it gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from vllm_neuron.accuracy.session import Session
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.kv_cache import KVBinding, KVSpec
from vllm_neuron.model.loading import Table, load_model
from vllm_neuron.nn import Rotary
from vllm_neuron.parallel import Group, run_in_threads
from vllm_neuron.step import Step

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = 45


@dataclass(frozen=True)
class Recorded:
    """One attention module of a reference: its inputs [T, H], outputs [T, H], tensors, and the model's config."""

    x_TH: Tensor
    out_TH: Tensor
    tensors: dict[str, Tensor]
    config: Any


def record(
    model_type: str,
    path: str,
    values: dict[str, Any],
    *,
    layers: tuple[int, ...] = (0,),
    residual: bool = False,
    implementation: str = "eager",
) -> Recorded:
    """Run a tiny random model over :data:`TOKENS` tokens and keep what its modules ``path`` got and gave.

    Args:
        model_type: as in transformers.
        path: of the module, with ``{i}`` for the layer.
        values: config values, over :data:`SIZES`; None leaves one of those out.
        layers: which layers; inputs and outputs of several lie side by side, and names get the layer as a prefix.
        residual: the module adds its second argument to its output, which is taken off again.
        implementation: of attention in transformers.
    """
    torch.manual_seed(5)
    merged = {name: value for name, value in (SIZES | values).items() if value is not None or name not in SIZES}
    config = AutoConfig.for_model(model_type, **merged)
    auto = AutoModelForCausalLM if type(config) in AutoModelForCausalLM._model_mapping else AutoModel
    model = auto.from_config(config, dtype=torch.float32, attn_implementation=implementation).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        out = output[0] if isinstance(output, tuple) else output
        seen.append((args[0] if args else kwargs["hidden_states"], out - args[1] if residual else out))

    tensors: dict[str, Tensor] = {}
    for layer in layers:
        module = model.get_submodule(path.format(i=layer))
        module.register_forward_hook(keep, with_kwargs=True)
        prefix = f"{layer}." if len(layers) > 1 else ""
        tensors |= {prefix + name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    with torch.no_grad():
        model(torch.randint(3, 97, (1, TOKENS)), use_cache=False)
    x, out = (torch.cat(part, dim=-1)[0] for part in zip(*seen, strict=True))
    return Recorded(x, out, tensors, config)


class Blocks(nn.Module):
    """Attention blocks as a model: token t stands for row t of the inputs, and a block's output for the logits."""

    vocab_size = TOKENS
    max_position = None

    def __init__(self, x_TH: Tensor, blocks: nn.Module, apply: Callable[[Any, Tensor, Step], Tensor]) -> None:
        super().__init__()
        self.attn, self.x_TH, self.apply_blocks = blocks, x_TH, apply

    def attentions(self) -> Any:
        """The blocks."""
        return DecoderModel.attentions(self)  # type: ignore[arg-type]

    def get_kv_spec(self) -> KVSpec:
        """As a decoder does."""
        return DecoderModel.get_kv_spec(self)  # type: ignore[arg-type]

    def bind_kv_cache(self, caches: dict[str, KVBinding]) -> None:
        """As a decoder does."""
        DecoderModel.bind_kv_cache(self, caches)  # type: ignore[arg-type]

    def forward(self, step: Step) -> Tensor:
        """[T, H]."""
        return self.apply_blocks(self.attn, self.x_TH[step.token_ids_T], step)

    def compute_logits(self, hidden_RH: Tensor) -> Tensor:
        """The output itself."""
        return hidden_RH


def run_all_ways(
    folder: Path,
    reference: Recorded,
    make: Callable[[], nn.Module],
    table: Table,
    *,
    ranks: tuple[int, ...] = (1, 2, 4),
    apply: Callable[[Any, Tensor, Step], Tensor] = lambda block, x, step: block(x, step),
) -> float:
    """The worst relative error of a row, over all numbers of ranks and all ways to divide the tokens into steps."""
    save_file(reference.tensors, folder / "model.safetensors")
    worst = 0.0

    def one(group: Group, chunks: tuple[int, ...], pad: int) -> Tensor:
        with torch.device("meta"):
            block = make()
        model = Blocks(reference.x_TH, block, apply)
        load_model(
            model, table, folder, rank=group.rank, world_size=group.world_size, dtype=torch.float32, progress=False
        )
        for part in model.modules():
            if isinstance(part, Rotary):
                part.build(torch.float32, torch.device("cpu"))
        session = Session(model, max_tokens=64, block_size=4)
        done, out = 0, []
        for size in chunks:
            ids = list(range(done, done + size))
            out.append(
                session.prefill(ids, pad=pad) if not done else session.extend(ids, pad=pad) if size > 1
                else session.decode(done)
            )  # fmt: skip
            done += size
        assert done == TOKENS
        return torch.cat(out)

    for count in ranks:
        for chunks, pad in (((TOKENS,), 3), ((13, 17, 4, *(1,) * 11), 2)):
            results = run_in_threads(count, lambda group, c=chunks, p=pad: one(group, c, p))
            for result in results:
                error = (result - reference.out_TH).norm(dim=-1) / reference.out_TH.norm(dim=-1)
                worst = max(worst, float(error.max()))
    return worst
