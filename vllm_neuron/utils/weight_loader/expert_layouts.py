"""All the ways in which checkpoints store the experts of a layer, for one loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError, nearest
from vllm_neuron.utils.weight_loader.dense import SafetensorsWeightLoader
from vllm_neuron.utils.weight_loader.experts import (
    expert_parallel_interleaved_loader,
    expert_parallel_tensor_dim_loader,
)
from vllm_neuron.utils.weight_loader.slices import LazySlice, SliceView, index_bounds, the_one

# How one tensor holds gate and up rows; what a Map row of experts may say.
EXPERT_LAYOUTS = ("interleaved",)


class StridedView:
    """Every ``step``-th entry of a lazy tensor along one dimension, from ``offset`` on; itself lazy.

    Reading a part reads the entries between as well.

    Raises:
        CheckpointError: ``step`` does not divide the size.
    """

    def __init__(self, base: LazySlice, dim: int, offset: int, step: int) -> None:
        shape = base.get_shape()
        if shape[dim] % step:
            raise CheckpointError("interleaved tensor: shape", shape, f"a multiple of {step} along dimension {dim}")
        self.base, self.dim, self.offset, self.step = base, dim, offset, step
        self._shape = [*shape[:dim], shape[dim] // step, *shape[dim + 1 :]]

    def get_shape(self) -> list[int]:
        """The view's shape."""
        return list(self._shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part of the view."""
        bounds = index_bounds(index, self._shape)
        start, stop = bounds[self.dim]
        bounds[self.dim] = (start * self.step, stop * self.step)
        whole = self.base[tuple(slice(a, b) for a, b in bounds)]
        every = [slice(None)] * whole.dim()
        every[self.dim] = slice(self.offset, None, self.step)
        return whole[tuple(every)]


def vector_loader(size: int) -> SafetensorsWeightLoader:
    """Every rank reads the whole vector, which a checkpoint may hold as [size] or as [1, size].

    Raises:
        CheckpointError: on load, another shape.
    """

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        source = the_one(slices)
        if source.get_shape() not in ([size], [1, size]):
            raise CheckpointError("vector: shape", source.get_shape(), f"[{size}] or [1, {size}]")
        return source[...].reshape(size)

    return SafetensorsWeightLoader(transform)


def experts_loader(
    local: Sequence[int],
    total: int,
    one: SafetensorsWeightLoader,
    shape: Sequence[int],
    *,
    pairs: bool = False,
    spare: int = 0,
) -> SafetensorsWeightLoader:
    """A rank's experts [local experts, ...] from any of these forms, told apart by the tensors' shapes.

    1. A tensor (or a gate and an up tensor) for each expert, in the order of a ``StackExperts`` row.
    2. One tensor that stacks them, [E, ...], or two of those (gates, ups).
    3. As 2, with experts and rows in one dimension: [E * rows, columns]; or, read transposed, [rows, E * columns].

    With the layout ``interleaved`` a tensor has gate row 0, up row 0, gate row 1, ...; else gate rows come first.

    Args:
        local: this rank's experts.
        total: E, experts of the layer.
        one: cuts one expert's tensor, or its two tensors, for the rank.
        shape: of one expert in the whole layer: [rows, columns], or [rows] for a bias.
        pairs: the rows are those of a gate and of an up projection, half each.
        spare: experts that a checkpoint may store after the E and that nothing uses.

    Raises:
        CheckpointError: on load, tensors of none of these forms.
        ConfigError: on load, another layout.
    """
    forms = _Forms(tuple(local), total, one, list(shape), pairs, spare)
    return SafetensorsWeightLoader(forms.load, arrange=forms.arrange)


@dataclass(frozen=True)
class _Forms:
    """The forms of :func:`experts_loader`, with its arguments."""

    local: tuple[int, ...]
    total: int
    one: SafetensorsWeightLoader
    shape: list[int]
    pairs: bool
    spare: int

    @property
    def halves(self) -> list[int]:
        """The shape of one of an expert's two tensors."""
        return [self.shape[0] // 2, *self.shape[1:]]

    def arrange(self, slices: Sequence[LazySlice], layout: str) -> Sequence[LazySlice]:
        if layout not in EXPERT_LAYOUTS or not self.pairs:
            allowed = EXPERT_LAYOUTS if self.pairs else ()
            expected = "interleaved, or none" if self.pairs else "none"
            raise ConfigError("layout", layout, expected, nearest(layout, allowed))
        whole = the_one(slices)
        dim = len(whole.get_shape()) - len(self.shape)
        return [StridedView(whole, dim, offset, 2) for offset in (0, 1)]

    def load(self, slices: Sequence[LazySlice], rank: int) -> Tensor:
        if not slices:
            raise CheckpointError("experts: tensors", 0, "one or more")
        first = slices[0].get_shape()
        if len(first) == len(self.shape) + 1:
            known = first[0] if first[0] == self.total + self.spare else self.total
            return expert_parallel_tensor_dim_loader(self.local, self.one, total_num_experts=known).load(slices, rank)
        if self.pairs and self.total == len(slices) == 2 and first == self.shape:
            expected = "gate and up apart, or one stack: two such tensors are either two experts or gates and ups"
            raise CheckpointError("experts: shape of two tensors", first, expected)
        if self.total > 1 and len(slices) <= (2 if self.pairs else 1):
            each = self.halves if len(slices) == 2 else self.shape
            for dim, size in enumerate(each):
                if first == [*each[:dim], size * self.total, *each[dim + 1 :]]:
                    return self._flat(slices, dim, size, rank)
        return self._apart(slices, rank, 2 if self.pairs and first[:1] == self.halves[:1] else 1)

    def _flat(self, slices: Sequence[LazySlice], dim: int, size: int, rank: int) -> Tensor:
        """Experts and rows in one dimension."""
        parts: list[LazySlice] = [SliceView(s, dim, e * size, (e + 1) * size) for e in self.local for s in slices]
        count = len(self.local)
        return expert_parallel_interleaved_loader(range(count), self.one, count).load(parts, rank)

    def _apart(self, slices: Sequence[LazySlice], rank: int, pieces: int) -> Tensor:
        """A tensor, or ``pieces`` of them, for each expert."""
        if len(slices) not in (pieces * self.total, pieces * (self.total + self.spare)):
            expected = f"{pieces * self.total}, {pieces} for each of {self.total} experts, or all experts stacked"
            raise CheckpointError("experts: tensors", len(slices), expected)
        return expert_parallel_interleaved_loader(self.local, self.one, len(slices) // pieces).load(slices, rank)
