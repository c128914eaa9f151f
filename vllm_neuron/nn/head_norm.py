"""Normalisation of heads: queries, keys, values, or the output of all heads, sharded over the ranks like they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.utils.weight_loader import LazySlice, SafetensorsWeightLoader, set_weight_loader

Kind = Literal["rms", "layernorm", "l2"]
Width = Literal["head", "full", "each_head"]


@dataclass(frozen=True)
class QKNorm:
    """A norm of queries and keys (or of values, or of the output of the heads).

    Attributes:
        eps: added to the mean square, or to the variance.
        kind: ``rms``; ``layernorm``; ``l2``, which is Llama 4's name for ``rms`` without a weight.
        width: ``head``: over each head, with one weight [D] for all; ``each_head``: over each head, with a weight
            [N, D]; ``full``: over all heads of the layer at once, those of other ranks too, with a weight [N * D].
        plus_one: multiply by ``1 + weight``.
        bias: add a bias of the weight's shape.
        weight: has a weight.
        after_rotary: normalise what the rotary embedding has turned, not what goes into it.

    Raises:
        ConfigError: a kind or width of another name, a bias without a weight, or a weight with ``l2``.
    """

    eps: float
    kind: Kind = "rms"
    width: Width = "head"
    plus_one: bool = False
    bias: bool = False
    weight: bool = True
    after_rotary: bool = False

    def __post_init__(self) -> None:
        for name, names in (("kind", Kind), ("width", Width)):
            if getattr(self, name) not in get_args(names):
                raise ConfigError(f"QKNorm: {name}", getattr(self, name), "one of " + ", ".join(get_args(names)))
        if self.kind == "l2" and self.weight:
            raise ConfigError("QKNorm: weight", self.weight, "False with kind l2", "Pass weight=False.")
        if self.bias and not self.weight:
            raise ConfigError("QKNorm: bias", self.bias, "False when there is no weight")


class HeadNorm(nn.Module):
    """One :class:`QKNorm` over the heads that this rank holds.

    Args:
        norm: which.
        heads: heads of this rank.
        size: D.
        replicas: ranks that hold the same heads (more ranks than KV heads).
        dtype: of the parameters; torch's default when None.

    Shapes: x [T, N, D] -> [T, N, D], in x's dtype; statistics are taken in float32.
    """

    def __init__(self, norm: QKNorm, heads: int, size: int, *, replicas: int = 1, dtype: torch.dtype | None = None):
        super().__init__()
        self.norm, self.group, self.replicas = norm, get_tp_group(), replicas
        ranks = self.group.world_size
        self.width = heads * ranks // replicas * size
        shape = (size,) if norm.width == "head" else (heads, size)
        self.weight, self.bias = (
            nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False) if has else None
            for has in (norm.weight, norm.bias)
        )
        for parameter in (self.weight, self.bias):
            if parameter is not None and norm.width != "head":
                set_weight_loader(parameter, heads_loader(heads, size, ranks, replicas))

    def forward(self, x_TND: Tensor) -> Tensor:
        """See the class."""
        weight, bias = self.weight, self.bias
        if self.norm.width == "full" and self.group.world_size == 1:
            flat = self._operation(x_TND.flatten(-2), _flat(weight), _flat(bias))
            return flat.unflatten(-1, x_TND.shape[-2:])
        if self.norm.width == "head" or (self.norm.width == "each_head" and self.norm.kind != "layernorm"):
            return self._operation(x_TND, weight, bias)
        return self._written_out(x_TND)

    def _operation(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        eps, plus_one = self.norm.eps, self.norm.plus_one
        if self.norm.kind == "layernorm":
            return NF.layer_norm(x, weight, bias, eps=eps, plus_one=plus_one)
        normed = NF.rms_norm(x, weight, eps=eps, plus_one=plus_one)
        return normed if bias is None else normed + bias

    def _written_out(self, x_TND: Tensor) -> Tensor:
        """Statistics over the ranks, or a weight for each head: no operation takes those."""
        x = x_TND.float()
        if self.norm.kind == "layernorm":
            x = x - self._mean(x)
        normed = x * torch.rsqrt(self._mean(x.pow(2)) + self.norm.eps)
        if self.weight is None:
            return normed.to(x_TND.dtype)
        if self.norm.plus_one:
            normed = normed * (1.0 + self.weight.float())
        elif self.norm.kind == "layernorm":
            normed = normed * self.weight.float()
        else:
            normed = self.weight * normed.to(x_TND.dtype)
        return (normed if self.bias is None else normed + self.bias).to(x_TND.dtype)

    def _mean(self, x_TND: Tensor) -> Tensor:
        """[T, N or 1, 1], over each head, or over all heads of all ranks."""
        if self.norm.width != "full":
            return x_TND.mean(-1, keepdim=True)
        total = x_TND.sum(dim=(-2, -1), keepdim=True)
        if self.group.world_size > 1:
            total = self.group.all_reduce(total)
        return total / (self.width * self.replicas)


def _flat(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.flatten()


def heads_loader(heads: int, size: int, ranks: int, replicas: int) -> SafetensorsWeightLoader:
    """A rank's rows [heads, size] of a weight for every head: one tensor [N, D] or [N * D], or a [D] for each head."""
    total = heads * ranks // replicas

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        start = rank // replicas * heads
        shapes = [s.get_shape() for s in slices]
        if shapes == [[total, size]]:
            return slices[0][start : start + heads]
        if shapes == [[total * size]]:
            return slices[0][start * size : (start + heads) * size].view(heads, size)
        if shapes == [[size]] * total:
            return torch.stack([s[...] for s in slices[start : start + heads]])
        expected = f"one of [{total}, {size}], one of [{total * size}], or {total} of [{size}]"
        raise CheckpointError("norm of heads: shapes", shapes[:4], expected)

    return SafetensorsWeightLoader(transform)
