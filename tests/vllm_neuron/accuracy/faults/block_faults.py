"""Faults in norms, MLPs, mixtures, layers, the two ends, and on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from tests.vllm_neuron.accuracy.faults.fault import Fault, Where
from tests.vllm_neuron.accuracy.faults.models import subject
from tests.vllm_neuron.accuracy.faults.plant import at, kernels, rewritten, setting, wrapped
from vllm_neuron.parallel import get_tp_group


def _halves_swapped(weight: Tensor) -> Tensor:
    return weight.roll(len(weight) // 2, 0)


def _swapped_product(reference: Any, x: Tensor, gate_up: Tensor, down: Tensor, **kwargs: Any) -> Tensor:
    """A kernel that takes the first half for up."""
    return reference(x, gate_up.roll(gate_up.shape[1] // 2, 1), down, **kwargs)


def _swapping_kernel() -> AbstractContextManager[None]:
    return kernels(mlp=_swapped_product)


def _sum_of_all(module: Any, forward: Any, x: Tensor) -> Any:
    """Weights are not divided by their sum."""
    weights, experts = forward(x)
    return weights * 0.7, experts


def _next_expert(module: Any, forward: Any, x: Tensor) -> Any:
    weights, experts = forward(x)
    return weights, (experts + 1) % 8


def _doubled(module: Any, forward: Any, x: Tensor, step: Any) -> Tensor:
    return forward(x, step) + x


def _skipped(module: Any, forward: Any, x: Tensor, step: Any) -> Tensor:
    return x


def _rows_before(model: Any) -> None:
    """Logits are taken of the token before."""
    forward = model.forward
    model.forward = lambda step: forward(step).roll(1, 0)


def _own_head(model: Any) -> None:
    """The head has a table of its own where it shares the embedding's."""
    own = torch.randn(model.head.weight.shape, generator=torch.Generator().manual_seed(3)) * 0.5
    model.head.weight = torch.nn.Parameter(own.to(model.head.weight.dtype), requires_grad=False)


def _dropped(name: str) -> Any:
    def change(module: Any) -> None:
        setattr(module, name, None)

    return change


def _on_ranks(change: Any) -> Any:
    """Only where there is more than one rank."""

    def plant(model: Any) -> None:
        if get_tp_group().world_size > 1:
            change(model)

    return plant


def _other_ranks_columns(model: Any) -> None:
    """The output projection has the columns of the other rank's heads."""
    whole = _whole("llama", "layers.1.attn.o")
    own = model.layers[1].attn.o.weight
    own.data.copy_(whole.chunk(2, dim=1)[1 - get_tp_group().rank])


def _transposed_shard(model: Any) -> None:
    """The shard is cut along the other dimension of a square matrix."""
    whole = _whole("llama", "layers.0.attn.o")
    model.layers[0].attn.o.weight.data.copy_(whole.chunk(2, dim=0)[get_tp_group().rank].t())


def _whole(name: str, path: str) -> Tensor:
    reference = subject(name).reference(torch.float32).model
    theirs = path.replace("layers", "model.layers").replace("attn.o", "self_attn.o_proj")
    return reference.get_submodule(theirs).weight.detach()


def _mixed_gate_up(model: Any) -> None:
    """A rank's shard of the fused gate and up matrix is cut as one block, not half by half."""
    layer = subject("llama").reference(torch.float32).model.model.layers[1].mlp
    fused = torch.cat((layer.gate_proj.weight, layer.up_proj.weight)).detach()
    model.layers[1].mlp.gate_up.weight.data.copy_(fused.chunk(2)[get_tp_group().rank])


def _unsummed(path: str) -> Any:
    """The ranks' parts are not summed."""

    def change(model: Any) -> None:
        model.get_submodule(path).reduce = lambda part: part

    return _on_ranks(change)


def _unsummed_experts(model: Any) -> None:
    class Alone:
        rank, world_size = 0, 1

        def all_reduce(self, x: Tensor) -> Tensor:
            return x

    model.layers[1].mlp.group = Alone()


def _other_ranks_sinks(model: Any) -> None:
    sinks = subject("gpt_oss").reference(torch.float32).model.model.layers[1].self_attn.sinks.detach()
    model.layers[1].attn.sinks.data.copy_(sinks.chunk(2)[1 - get_tp_group().rank])


def block_faults() -> Iterator[Fault]:
    """The rows of the table, each with the place where it must be found."""
    yield Fault("wrong eps", "llama", Where(1, "mlp_norm", "eps"), setting("layers.1.mlp_norm", eps=1e-5))
    yield Fault("wrong eps of the last norm", "llama", Where(None, "norm", "eps"), setting("norm", eps=1e-5))
    yield Fault(
        "norm without 1 + w", "gemma3", Where(1, "attn_norm", "weight"), setting("layers.1.attn_norm", plus_one=False)
    )
    yield Fault(
        "gate and up swapped", "llama", Where(1, "mlp", "gate_up"), rewritten("layers.1.mlp.gate_up", _halves_swapped)
    )
    yield Fault("a kernel swaps gate and up", "llama", Where(0, "mlp", "activation"), inside=_swapping_kernel)
    yield Fault("gelu for gelu-tanh", "gemma3", Where(1, "mlp", "activation"), setting("layers.1.mlp", act="gelu"))
    yield Fault("gelu for silu", "llama", Where(2, "mlp", "activation"), setting("layers.2.mlp", act="gelu"))
    yield Fault(
        "wrong down projection",
        "llama",
        Where(1, "mlp", "down"),
        rewritten("layers.1.mlp.down", lambda w: w.roll(1, 1)),
    )
    router = "layers.1.mlp.router"
    unnormalised = wrapped(router, _sum_of_all)
    yield Fault("router's weights not normalised", "qwen3_moe", Where(1, "mlp", "router"), unnormalised)
    yield Fault("wrong expert", "qwen3_moe", Where(1, "mlp", "router"), wrapped(router, _next_expert))
    yield Fault(
        "experts stacked in another order",
        "qwen3_moe",
        Where(0, "mlp", "experts"),
        rewritten("layers.0.mlp.experts.down", lambda w: w.roll(1, 0)),
    )
    yield Fault(
        "router's bias dropped", "gpt_oss", Where(1, "mlp", "router"), at("layers.1.mlp.router", _dropped("bias"))
    )
    yield Fault(
        "experts' clamp dropped", "gpt_oss", Where(1, "mlp", "experts"), at("layers.1.mlp.experts", _dropped("clamp"))
    )
    yield Fault("residual added twice", "llama", Where(1, "layer", "wiring"), wrapped("layers.1", _doubled))
    yield Fault("layer skipped", "llama", Where(1, "layer", "skipped"), wrapped("layers.1", _skipped))
    yield Fault("no embedding scale", "gemma3", Where(None, "embed", "scale"), setting("embed", scale=None))
    yield Fault("wrong soft cap of the logits", "gemma3", Where(None, "head", "softcap"), setting("head", softcap=6.0))
    yield Fault("tied head not tied", "llama-tied", Where(None, "head", "weight"), _own_head)
    yield Fault("logits of another token", "llama", Where(None, "head", "rows"), _rows_before)
    two = "TP 2"
    yield Fault(
        "shard cut along the other dimension", "llama", Where(0, "attn", "o", two), _on_ranks(_transposed_shard)
    )
    yield Fault("output shards in another order", "llama", Where(1, "attn", "o", two), _on_ranks(_other_ranks_columns))
    yield Fault("gate and up cut as one block", "llama", Where(1, "mlp", "gate_up", two), _on_ranks(_mixed_gate_up))
    yield Fault("attention not summed", "llama", Where(1, "attn", "all_reduce", two), _unsummed("layers.1.attn.o"))
    yield Fault("MLP not summed", "llama", Where(0, "mlp", "all_reduce", two), _unsummed("layers.0.mlp.down"))
    yield Fault("experts not summed", "qwen3_moe", Where(1, "mlp", "all_reduce", two), _on_ranks(_unsummed_experts))
    yield Fault("sinks of the other rank", "gpt_oss", Where(1, "attn", "sinks", two), _on_ranks(_other_ranks_sinks))
