"""Tensors of the stand-in: a storage and a strided view of it.

Dimension 0 of an SBUF or PSUM tensor is the partition. An integer index drops a dimension of an HBM tensor; on chip it
keeps the partition dimension with size 1, and the result has at least two dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import fail
from vllm_neuron.nki.standin.dtypes import DType, as_dtype
from vllm_neuron.nki.standin.memory import Storage

Shape = tuple[int, ...]


def contiguous(shape: Shape, itemsize: int) -> Shape:
    """Row-major strides in bytes."""
    strides = [itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


class Tensor:
    """A view of a storage.

    Attributes:
        storage: the memory.
        shape: sizes; ``[partition, free...]`` on chip.
        strides: bytes from one element to the next, a dimension.
        offset: bytes from the start of the storage to the first element.
        dtype: element type (differs from the storage's after ``view``).
        buffer: ``hbm``, ``sbuf`` or ``psum``.
        whole: whether the view covers each element of the storage exactly once.
    """

    __slots__ = ("_array", "buffer", "dtype", "offset", "shape", "storage", "strides", "whole")

    def __init__(
        self, storage: Storage, shape: Shape, strides: Shape, offset: int, dtype: DType, whole: bool = False
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dtype = dtype
        self.buffer = storage.buffer
        self.whole = whole
        self._array: NDArray[Any] | None = None

    @classmethod
    def of(cls, storage: Storage) -> Tensor:
        """The whole of a storage."""
        return cls(storage, storage.shape, contiguous(storage.shape, storage.dtype.itemsize), 0, storage.dtype, True)

    @property
    def name(self) -> str:
        """Name given at allocation."""
        return self.storage.name

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def array(self) -> NDArray[Any]:
        """The elements as a NumPy view of the storage."""
        found = self._array
        if found is None:
            found = np.ndarray(self.shape, self.dtype.numpy, self.storage.raw, self.offset, self.strides)
            self._array = found
        return found

    @property
    def start_partition(self) -> int:
        """First partition of an on-chip view."""
        return self.offset // self.storage.row if self.storage.row else 0

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)} {self.dtype} in {self.buffer}"

    # Whether elements were written.

    def _flags(self) -> NDArray[np.bool_] | None:
        """The view's written flags, writable; None after ``view`` to a type of another size."""
        storage = self.storage
        size = storage.dtype.itemsize
        flags = storage.flags()
        if size != self.dtype.itemsize:
            return None
        strides = tuple([s // size for s in self.strides])
        return np.ndarray(self.shape, np.bool_, flags, self.offset // size, strides)

    def _elements(self) -> NDArray[np.int64]:
        """Indices of the storage's elements under a view of another element size."""
        start: NDArray[np.int64] = np.array(self.offset, np.int64)
        for count, stride in zip(self.shape, self.strides, strict=True):
            start = start[..., None] + np.arange(count, dtype=np.int64) * stride
        size = self.storage.dtype.itemsize
        return (start[..., None] + np.arange(self.dtype.itemsize)) // size

    def written(self) -> bool | NDArray[np.bool_]:
        """True or False when all elements are alike, else one flag an element."""
        state = self.storage.written
        if state is True or state is False:
            return state
        flags = self._flags()
        if flags is None:
            flags = self.storage.flags()[self._elements()].all(axis=-1)
        if flags.all():
            if self.whole:
                self.storage.written = True
            return True
        return flags if flags.any() else False

    def mark(self) -> None:
        """Record that every element of the view was written."""
        storage = self.storage
        if storage.written is True:
            return
        if self.whole:
            storage.written = True
            return
        flags = self._flags()
        if flags is None:
            storage.flags()[self._elements()] = True
        else:
            flags[...] = True

    # Views.

    def _view(self, shape: Shape, strides: Shape, whole: bool | None = None) -> Tensor:
        return Tensor(self.storage, shape, strides, self.offset, self.dtype, self.whole if whole is None else whole)

    def __getitem__(self, key: Any) -> Tensor:
        items = key if type(key) is tuple else (key,)
        if Ellipsis in [i for i in items if i is Ellipsis]:
            items = self._expand(items)
        if len(items) > len(self.shape):
            fail(f"{self.name}[...]", key, f"at most {len(self.shape)} indices, the tensor has shape {self.shape}")
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        on_chip = self.buffer != "hbm"
        for axis, item in enumerate(items):
            limit = self.shape[axis]
            stride = self.strides[axis]
            if type(item) is slice:
                start, stop, step = self._slice(item, axis)
                offset += start * stride
                shape.append(-(-(stop - start) // step))
                strides.append(stride * step)
                continue
            index = self._integer(item, axis)
            if not 0 <= index < limit:
                fail(f"{self.name} index {axis}", index, f"0 to {limit - 1}, the tensor has shape {self.shape}")
            offset += index * stride
            if on_chip and axis == 0:
                shape.append(1)
                strides.append(stride)
        shape += self.shape[len(items) :]
        strides += self.strides[len(items) :]
        if len(shape) < 2 and on_chip:
            shape.append(1)
            strides.append(self.dtype.itemsize)
        elif not shape:
            shape, strides = [1], [self.dtype.itemsize]
        whole = self.whole and tuple(shape) == self.shape
        return Tensor(self.storage, tuple(shape), tuple(strides), offset, self.dtype, whole)

    def _expand(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        missing = len(self.shape) - (len(items) - 1)
        return items[:at] + (slice(None),) * max(missing, 0) + items[at + 1 :]

    def _slice(self, item: slice, axis: int) -> tuple[int, int, int]:
        limit = self.shape[axis]
        start = 0 if item.start is None else int(item.start)
        stop = limit if item.stop is None else int(item.stop)
        step = 1 if item.step is None else int(item.step)
        if start < 0 or stop > limit or stop <= start or step < 1:
            fail(
                f"{self.name} slice of dimension {axis}",
                f"{start}:{stop}" + (f":{step}" if step != 1 else ""),
                f"a non-empty range inside 0:{limit} with a positive step, the tensor has shape {self.shape}",
            )
        return start, stop, step

    def _integer(self, item: Any, axis: int) -> int:
        try:
            return int(item.__index__())
        except AttributeError:
            fail(
                f"{self.name} index {axis}",
                type(item).__name__,
                "an integer, a slice, nl.ds(start, size), a register or ...",
                "Indices from a tensor go through .ap(vector_offset=...).",
            )

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape, without a copy; the partition dimension can't be split on chip."""
        new = tuple(int(n) for n in shape)
        if math.prod(new) != self.size:
            fail(f"{self.name}.reshape", new, f"{self.size} elements, as in shape {self.shape}")
        if self.buffer != "hbm" and new[0] != self.shape[0]:
            fail(f"{self.name}.reshape", new, f"the partition dimension {self.shape[0]} unchanged")
        strides = _reshaped(self.shape, self.strides, new)
        if strides is None:
            fail(f"{self.name}.reshape", new, f"a shape that the strides of {self!r} allow without a copy")
        return self._view(new, strides)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Tensor:
        """Split one dimension into several."""
        sizes = tuple(int(n) for n in shape)
        known = math.prod(n for n in sizes if n != -1)
        if -1 in sizes and known:
            sizes = tuple(self.shape[dim] // known if n == -1 else n for n in sizes)
        return self.reshape(self.shape[:dim] + sizes + self.shape[dim + 1 :])

    def flatten_dims(self, start_dim: int, end_dim: int) -> Tensor:
        """Merge the dimensions ``start_dim`` to ``end_dim``, both included."""
        end = end_dim % len(self.shape)
        merged = math.prod(self.shape[start_dim : end + 1])
        return self.reshape((*self.shape[:start_dim], merged, *self.shape[end + 1 :]))

    def permute(self, dims: Sequence[int]) -> Tensor:
        """Dimensions in another order; the partition dimension stays first on chip."""
        order = tuple(int(d) for d in dims)
        if sorted(order) != list(range(len(self.shape))):
            fail(f"{self.name}.permute", order, f"each of 0 to {len(self.shape) - 1} once")
        if self.buffer != "hbm" and order[0] != 0:
            fail(f"{self.name}.permute", order, "the partition dimension first", "Transpose with nisa.nc_transpose.")
        return self._view(tuple(self.shape[d] for d in order), tuple(self.strides[d] for d in order))

    def expand_dim(self, dim: int) -> Tensor:
        """A new dimension of size 1 before ``dim``."""
        at = dim % (len(self.shape) + 1)
        if at == 0 and self.buffer != "hbm":
            fail(f"{self.name}.expand_dim", dim, "a free dimension: the partition dimension stays first on chip")
        return self._view(
            (*self.shape[:at], 1, *self.shape[at:]), (*self.strides[:at], self.dtype.itemsize, *self.strides[at:])
        )

    def squeeze_dim(self, dim: int) -> Tensor:
        """Without a dimension of size 1."""
        at = dim % len(self.shape)
        if self.shape[at] != 1 or (at == 0 and self.buffer != "hbm"):
            fail(f"{self.name}.squeeze_dim", dim, f"a free dimension of size 1 in {self.shape}")
        return self._view(self.shape[:at] + self.shape[at + 1 :], self.strides[:at] + self.strides[at + 1 :])

    def broadcast(self, dim: int, size: int) -> Tensor:
        """Repeat a dimension of size 1 without a copy; the view is for reading."""
        at = dim % len(self.shape)
        if self.shape[at] != 1:
            fail(f"{self.name}.broadcast", dim, f"a dimension of size 1 in {self.shape}")
        if at == 0 and self.buffer != "hbm":
            fail(f"{self.name}.broadcast", dim, "a free dimension", "No engine reads one partition for many.")
        return self._view(
            (*self.shape[:at], int(size), *self.shape[at + 1 :]),
            (*self.strides[:at], 0, *self.strides[at + 1 :]),
            False,
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """``start:end:step`` of one dimension."""
        return self[(slice(None),) * (dim % len(self.shape)) + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> Tensor:
        """One index of a dimension (an integer or a register)."""
        return self[(slice(None),) * (dim % len(self.shape)) + (index,)]

    def view(self, dtype: Any) -> Tensor:
        """The same bytes as another type; the last dimension scales with the element size."""
        target = as_dtype(dtype)
        if target is None:
            fail(f"{self.name}.view", dtype, "an element type of nki.language")
        have, want = self.dtype.itemsize, target.itemsize
        shape, strides = list(self.shape), list(self.strides)
        if have != want:
            total = shape[-1] * have
            if strides[-1] != have or total % want or self.offset % want or any(s % want for s in strides[:-1]):
                fail(f"{self.name}.view", dtype, f"a last dimension of contiguous bytes, {total} divisible by {want}")
            shape[-1] = total // want
            strides[-1] = want
        return Tensor(self.storage, tuple(shape), tuple(strides), self.offset, target, self.whole)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: Any = 0,
        scalar_offset: Any = None,
        vector_offset: Tensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Tensor:
        """A free access pattern: ``[[stride, count], ...]`` in elements of the flat storage.

        Args:
            pattern: one pair a dimension; the first is the partition on chip.
            offset: elements to the first one.
            scalar_offset: a register or a one-element tensor; its value times the stride of ``indirect_dim`` of this
                tensor is added to the offset when the view is used.
            vector_offset: ``[P, 1]`` integers; index times the stride of ``indirect_dim`` replaces what the first
                pair's stride would add. Only DMA takes such a view.
            indirect_dim: dimension of this tensor that the indices count.
            dtype: other element type of the same size.
        """
        from vllm_neuron.nki.standin.pattern import access

        return access(self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype)


def _reshaped(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of ``new`` over the same memory, or None when that takes a copy."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result: list[int] = []
    i = 0
    group_n, group_s = 1, 0
    for n in reversed(new):
        if n == 1:
            result.append(result[-1] if result else strides[-1] if strides else 1)
            continue
        while group_n == 1:
            i += 1
            group_n, group_s = old[-i]
        while group_n < n or group_n % n:
            i += 1
            if i > len(old) or old[-i][1] != group_s * group_n:
                return None
            group_n *= old[-i][0]
        result.append(group_s)
        group_n //= n
        group_s *= n
    return tuple(reversed(result))
