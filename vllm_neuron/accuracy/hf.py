"""Hugging Face models as references: loaded whole from a checkpoint folder, eager, in one dtype."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_neuron.accuracy.origins import origins
from vllm_neuron.errors import CheckpointError
from vllm_neuron.model.loading.checkpoint import Checkpoint

EAGER = "eager_attention_forward"
# Values are compared up to here; beyond, names alone say where a tensor went.
MOST_COMPARED = 50_000_000


@dataclass(frozen=True)
class HFReference:
    """A causal LM of transformers and its checkpoint folder.

    Attributes:
        model: in eval mode with eager attention.
        folder: where its weights came from.
    """

    model: Any
    folder: Path

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype) -> HFReference:
        """Read a checkpoint.

        Raises:
            CheckpointError: transformers can't read it.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        try:
            config = AutoConfig.from_pretrained(folder)
            config._experts_implementation = "eager"
            model = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, attn_implementation="eager", local_files_only=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(str(folder), f"{type(error).__name__}: {error}", "a model of transformers") from error
        return cls(model.eval().requires_grad_(False), folder)

    @cached_property
    def origin(self) -> Mapping[str, Sequence[str]]:
        """Key of the checkpoint -> the parameters behind it; where values can't be compared, what its name says."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with Checkpoint(self.folder) as checkpoint:
            keys = list(checkpoint.tensors)
            found: dict[str, Sequence[str]] = {key: [key] for key in keys if key in own}
            other = [key for key in keys if key not in own]
            if other and sum(p.numel() for p in self.model.parameters()) <= MOST_COMPARED:
                saved = {key: checkpoint.slice(key, torch.float32)[...] for key in other}
                found |= origins(self.model, saved)
        return found | {key: [key] for key in other if not found.get(key)}

    def logits(self, ids: Sequence[int] | Tensor) -> Tensor:
        """float32 [T, V] of one sequence, without a cache."""
        tokens = torch.as_tensor(ids, dtype=torch.int64).reshape(1, -1)
        with torch.no_grad():
            found: Tensor = self.model(input_ids=tokens, use_cache=False).logits[0].float()
        return found


@dataclass(frozen=True)
class AttentionCall:
    """What attention proper was given and gave: after norms and positions, before the output projection.

    Attributes:
        q_TND, k_SKD, v_SKE: queries, keys, values.
        mask_TS: bool, True where a query sees a key; None when the module was given no mask.
        scaling: factor on the scores. softcap: of the scores, or None.
        sinks_N: extra logits of the heads, or None.
        out_TNE: the result.
    """

    q_TND: Tensor
    k_SKD: Tensor
    v_SKE: Tensor
    mask_TS: Tensor | None
    scaling: float | None
    softcap: float | None
    sinks_N: Tensor | None
    out_TNE: Tensor


@contextlib.contextmanager
def attention_calls(root: nn.Module) -> Iterator[list[AttentionCall]]:
    """Record what the attention modules under ``root`` hand to transformers' eager attention function.

    The function is looked up in the file of the module's class at each call; it is wrapped there for as long as the
    ``with`` block lasts. Modules that compute attention themselves record nothing.
    """
    calls: list[AttentionCall] = []
    homes = {sys.modules[type(m).__module__] for m in root.modules()}
    before = {home: vars(home)[EAGER] for home in homes if callable(vars(home).get(EAGER))}
    for home, function in before.items():
        setattr(home, EAGER, _recording(function, calls))
    try:
        yield calls
    finally:
        for home, function in before.items():
            setattr(home, EAGER, function)


def _recording(function: Callable[..., Any], calls: list[AttentionCall]) -> Callable[..., Any]:
    def recording(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kw: Any
    ) -> Any:
        result = function(module, query, key, value, mask, *args, **kw)
        q, k, v = (x.detach()[0].transpose(0, 1).clone() for x in (query, key, value))
        seen = None if mask is None else _visible(mask, key.shape[-2])
        scaling = kw.get("scaling", next((a for a in args if isinstance(a, float)), None))
        sinks = kw.get("s_aux", getattr(module, "sinks", None))
        calls.append(AttentionCall(q, k, v, seen, scaling, kw.get("softcap"), sinks, result[0].detach()[0].clone()))
        return result

    return recording


def _visible(mask: Tensor, keys: int) -> Tensor:
    mask = mask[0, 0, :, :keys]
    return mask.clone() if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
