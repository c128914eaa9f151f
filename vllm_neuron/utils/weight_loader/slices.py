"""Lazy tensors: what a weight loader reads from. Cutting one reads nothing; indexing the last view reads its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError

T = TypeVar("T")
Bounds = list[tuple[int, int]]


class LazySlice(Protocol):
    """A tensor in a file, or a view of one; ``safetensors``' ``get_slice`` is one too."""

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        ...

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part: ``...``, a slice, or a tuple of slices, all with step 1."""
        ...


def index_bounds(index: Any, shape: Sequence[int]) -> Bounds:
    """``(start, stop)`` along each dimension for an index of slices and ``...``.

    Raises:
        TypeError: an index of another kind, a step other than 1, or more slices than dimensions.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    if len(parts) != len(shape) or not all(isinstance(p, slice) and p.step in (None, 1) for p in parts):
        raise TypeError(f"a lazy tensor of shape {list(shape)} takes slices with step 1, not {index!r}")
    found = [part.indices(size)[:2] for part, size in zip(parts, shape, strict=True)]
    return [(start, max(start, stop)) for start, stop in found]


class SliceView:
    """Part ``start..stop`` of a lazy tensor along one dimension, itself lazy: views of views compose.

    Args:
        base: the tensor or another view.
        dim: dimension that is cut.
        start, stop: bounds along ``dim``.
        drop: leave the dimension out of the view; needs ``stop == start + 1``.

    Raises:
        CheckpointError: bounds outside the tensor.
    """

    def __init__(self, base: LazySlice, dim: int, start: int, stop: int, *, drop: bool = False) -> None:
        shape = base.get_shape()
        if not 0 <= dim < len(shape):
            raise CheckpointError("slice: shape", shape, f"more than {dim} dimensions")
        if not 0 <= start <= stop <= shape[dim] or (drop and stop != start + 1):
            raise CheckpointError("slice", (start, stop), f"bounds inside 0..{shape[dim]} of dimension {dim}")
        self.base, self.dim, self.start, self.stop, self.drop = base, dim, start, stop, drop
        self._shape = [*shape[:dim], *([] if drop else [stop - start]), *shape[dim + 1 :]]

    def get_shape(self) -> list[int]:
        """The view's shape."""
        return list(self._shape)

    def _inside(self, index: Any) -> tuple[slice, ...]:
        bounds = index_bounds(index, self._shape)
        if self.drop:
            bounds.insert(self.dim, (0, 1))
        begin, end = bounds[self.dim]
        bounds[self.dim] = (self.start + begin, self.start + end)
        return tuple(slice(a, b) for a, b in bounds)

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part of the view."""
        part = self.base[self._inside(index)]
        return part.squeeze(self.dim) if self.drop else part

    def read_into(self, index: Any, out: Tensor) -> None:
        """Read a part of the view into a tensor of its shape."""
        read_into(self.base, self._inside(index), out.unsqueeze(self.dim) if self.drop else out)


class GatherView:
    """Several parts of a lazy tensor along one dimension, one after the other; itself lazy.

    Args:
        base: the tensor or a view.
        dim: dimension that the parts are of.
        ranges: ``(start, stop)`` of each part.

    Raises:
        CheckpointError: bounds outside the tensor.
    """

    def __init__(self, base: LazySlice, dim: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.parts = [SliceView(base, dim, start, stop) for start, stop in ranges]
        self.base, self.dim = base, dim
        self._shape = base.get_shape()
        self._shape[dim] = sum(stop - start for start, stop in ranges)

    def get_shape(self) -> list[int]:
        """The view's shape."""
        return list(self._shape)

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part of the view: only the pieces that it touches."""
        bounds = index_bounds(index, self._shape)
        begin, end = bounds[self.dim]
        pieces, at = [], 0
        for part in self.parts:
            size = part.stop - part.start
            low, high = max(begin - at, 0), min(end - at, size)
            if low < high:
                inside = [*bounds]
                inside[self.dim] = (low, high)
                pieces.append(part[tuple(slice(a, b) for a, b in inside)])
            at += size
        if not pieces:
            bounds[self.dim] = (0, 0)
            return self.base[tuple(slice(a, b) for a, b in bounds)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=self.dim)


class TransposedView:
    """A lazy tensor with its last two dimensions swapped; a vector stays as it is. Itself lazy."""

    def __init__(self, base: LazySlice) -> None:
        self.base = base

    def get_shape(self) -> list[int]:
        """The view's shape."""
        return _swapped(self.base.get_shape())

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part of the view."""
        bounds = _swapped(index_bounds(index, self.get_shape()))
        part = self.base[tuple(slice(start, stop) for start, stop in bounds)]
        return part.transpose(-2, -1).contiguous() if part.dim() > 1 else part


def _swapped(items: list[T]) -> list[T]:
    return items if len(items) < 2 else [*items[:-2], items[-1], items[-2]]


class ShapeSlice:
    """A tensor's shape without its numbers: reading gives meta tensors, so that a loader can be tried before a load."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self._shape, self._dtype = list(shape), dtype

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._shape)

    def __getitem__(self, index: Any) -> Tensor:
        """A meta tensor of the part's shape."""
        shape = [stop - start for start, stop in index_bounds(index, self._shape)]
        return torch.empty(shape, dtype=self._dtype, device="meta")


class TensorSlice:
    """A tensor in memory as a lazy one, for weights that were made and not read."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> Tensor:
        """A view of the part."""
        bounds = index_bounds(index, self._tensor.shape)
        return self._tensor[tuple(slice(start, stop) for start, stop in bounds)]


def along(source: LazySlice, dim: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of rows ``start..stop`` along ``dim``."""
    index = [slice(None)] * len(source.get_shape())
    index[dim] = slice(start, stop)
    return tuple(index)


def read_into(source: LazySlice, index: Any, out: Tensor) -> None:
    """Read a part into a tensor of its shape; without a copy where the source can (it has ``read_into`` itself)."""
    direct = getattr(source, "read_into", None)
    if direct is not None and out.is_contiguous():
        direct(index, out)
    else:
        out.copy_(source[index])


def read_joined(parts: Sequence[tuple[LazySlice, int, int]], dim: int) -> Tensor:
    """Rows ``start..stop`` along ``dim`` of each ``(source, start, stop)``, one after the other.

    Raises:
        CheckpointError: the sources differ in another dimension.
    """
    first = parts[0][0]
    shape = first.get_shape()
    shape[dim] = sum(stop - start for _, start, stop in parts)
    joined = first[along(first, dim, 0, 0)].new_empty(shape)
    at = 0
    for source, start, stop in parts:
        found = source.get_shape()
        if len(found) != len(shape) or any(
            n != m for d, (n, m) in enumerate(zip(found, shape, strict=True)) if d != dim
        ):
            raise CheckpointError("tensors to join: shape", found, f"like {shape} but for dimension {dim}")
        read_into(source, along(source, dim, start, stop), joined.narrow(dim, at, stop - start))
        at += stop - start
    return joined


def expect_size(source: LazySlice, dim: int, size: int, what: str) -> None:
    """Refuse a tensor whose size along ``dim`` is another.

    Raises:
        CheckpointError: with the tensor's shape.
    """
    shape = source.get_shape()
    if not 0 <= dim < len(shape) or shape[dim] != size:
        raise CheckpointError(f"{what}: shape", shape, f"size {size} along dimension {dim}")


def the_one(slices: Sequence[LazySlice]) -> LazySlice:
    """The only slice of a parameter.

    Raises:
        CheckpointError: none, or several.
    """
    if len(slices) != 1:
        raise CheckpointError("checkpoint keys of one parameter", len(slices), "one key")
    return slices[0]


def stack(parts: Iterable[Tensor], count: int) -> Tensor:
    """``count`` tensors of one shape along a new first dimension, each freed before the next is read.

    Raises:
        CheckpointError: the parts differ in shape.
    """
    stacked: Tensor | None = None
    for at, part in enumerate(parts):
        if stacked is None:
            stacked = part.new_empty([count, *part.shape])
        if stacked.shape[1:] != part.shape:
            raise CheckpointError("tensors to stack: shape", list(part.shape), f"{list(stacked.shape[1:])}")
        stacked[at].copy_(part)
    assert stacked is not None and at == count - 1
    return stacked


def pad(part: Tensor, dim: int, size: int) -> Tensor:
    """The tensor filled up with zeros at the end of ``dim``, to ``size``."""
    if part.shape[dim] == size:
        return part
    shape = list(part.shape)
    shape[dim] = size
    filled = part.new_zeros(shape)
    filled.narrow(dim, 0, part.shape[dim]).copy_(part)
    return filled
