"""Views of a tensor: indexing, reshaping, reordering, access patterns. No view copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_neuron.nki.standin.core import fail
from vllm_neuron.nki.standin.dtypes import DType, as_dtype
from vllm_neuron.nki.standin.memory import Storage

if TYPE_CHECKING:
    from vllm_neuron.nki.standin.tensor import Tensor

Shape = tuple[int, ...]


def contiguous(shape: Shape, itemsize: int) -> Shape:
    """Row-major steps in bytes."""
    steps = [itemsize] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        steps[i] = steps[i + 1] * shape[i + 1]
    return tuple(steps)


class Views:
    """The view methods of a tensor; see ``Tensor`` for the attributes."""

    __slots__ = ()

    storage: Storage
    shape: Shape
    steps: Shape
    start: int
    dtype: DType
    place: str
    whole: bool
    name: Any
    size: Any
    strides: Any

    def _view(self, shape: Shape, steps: Shape, whole: bool | None = None) -> Tensor:
        from vllm_neuron.nki.standin.tensor import Tensor

        return Tensor(self.storage, shape, steps, self.start, self.dtype, self.whole if whole is None else whole)

    def __getitem__(self, key: Any) -> Tensor:
        items = key if type(key) is tuple else (key,)
        if Ellipsis in items:
            items = self._expand(items)
        if len(items) > len(self.shape):
            fail(f"{self.name}[...]", key, f"at most {len(self.shape)} indices, the tensor has shape {self.shape}")
        shape: list[int] = []
        steps: list[int] = []
        at = self.start
        on_chip = self.place != "hbm"
        for axis, item in enumerate(items):
            limit = self.shape[axis]
            step = self.steps[axis]
            if type(item) is slice:
                first, stop, stride = self._slice(item, axis)
                at += first * step
                shape.append(-(-(stop - first) // stride))
                steps.append(step * stride)
                continue
            index = self._integer(item, axis)
            if not 0 <= index < limit:
                fail(f"{self.name} index {axis}", index, f"0 to {limit - 1}, the tensor has shape {self.shape}")
            at += index * step
            if on_chip and axis == 0:
                shape.append(1)
                steps.append(step)
        shape += self.shape[len(items) :]
        steps += self.steps[len(items) :]
        if len(shape) < 2 and on_chip:
            shape.append(1)
            steps.append(self.dtype.itemsize)
        elif not shape:
            shape, steps = [1], [self.dtype.itemsize]
        final = tuple(shape)
        return type_of(self)(self.storage, final, tuple(steps), at, self.dtype, self.whole and final == self.shape)

    def _expand(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        missing = len(self.shape) - (len(items) - 1)
        return items[:at] + (slice(None),) * max(missing, 0) + items[at + 1 :]

    def _slice(self, item: Any, axis: int) -> tuple[int, int, int]:
        limit = self.shape[axis]
        first = 0 if item.start is None else int(item.start)
        stop = limit if item.stop is None else int(item.stop)
        stride = 1 if item.step is None else int(item.step)
        if first < 0 or stop > limit or stop <= first or stride < 1:
            fail(
                f"{self.name} slice of dimension {axis}",
                f"{first}:{stop}" + (f":{stride}" if stride != 1 else ""),
                f"a non-empty range inside 0:{limit} with a positive step, the tensor has shape {self.shape}",
            )
        return first, stop, stride

    def _integer(self, item: Any, axis: int) -> int:
        try:
            return int(item.__index__())
        except AttributeError:
            fail(
                f"{self.name} index {axis}",
                type(item).__name__,
                "an integer, a slice, nl.ds(start, size), a register or ...",
                "Indices from a tensor go through .ap(vector_offset=...) or .select(dim, tensor).",
            )

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape, without a copy; the partition dimension can't be split on chip."""
        new = tuple(int(n) for n in shape)
        if math.prod(new) != self.size:
            fail(f"{self.name}.reshape", new, f"{self.size} elements, as in shape {self.shape}")
        if self.place != "hbm" and new[0] != self.shape[0]:
            fail(f"{self.name}.reshape", new, f"the partition dimension {self.shape[0]} unchanged")
        steps = _reshaped(self.shape, self.steps, new)
        if steps is None:
            fail(f"{self.name}.reshape", new, f"a shape that the strides {self.strides} allow without a copy")
        return self._view(new, steps)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Tensor:
        """Split one dimension into several; one size may be -1."""
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
        if self.place != "hbm" and order[0] != 0:
            fail(f"{self.name}.permute", order, "the partition dimension first", "Transpose with nisa.nc_transpose.")
        return self._view(tuple(self.shape[d] for d in order), tuple(self.steps[d] for d in order))

    def rearrange(
        self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any], fixed_sizes: dict[str, int] | None = None
    ) -> Tensor:
        """Split, reorder and merge by names: ``t.rearrange(("p", ("h", "w")), ("p", "w", "h"), {"h": 4})``."""
        if len(src_pattern) != len(self.shape):
            fail(f"{self.name}.rearrange", src_pattern, f"{len(self.shape)} dimensions, as in {self.shape}")
        names: list[str] = []
        sizes: list[int] = []
        known = fixed_sizes or {}
        for size, group in zip(self.shape, src_pattern, strict=True):
            members = (group,) if isinstance(group, str) else tuple(group)
            given = [known.get(name, -1) for name in members] if len(members) > 1 else [size]
            rest = math.prod(n for n in given if n != -1)
            if given.count(-1) > 1 or size % rest:
                fail(f"{self.name}.rearrange", group, f"sizes whose product is {size}, at most one left out")
            names += members
            sizes += [size // rest if n == -1 else n for n in given]
        targets = [(g,) if isinstance(g, str) else tuple(g) for g in dst_pattern]
        flat = [name for group in targets for name in group]
        if sorted(flat) != sorted(names) or len(set(names)) != len(names):
            fail(f"{self.name}.rearrange", dst_pattern, f"each of {', '.join(names)} once")
        order = [names.index(name) for name in flat]
        split = self.reshape(sizes).permute(order)
        by_name = dict(zip(names, sizes, strict=True))
        return split.reshape([math.prod(by_name[name] for name in group) for group in targets])

    def expand_dim(self, dim: int) -> Tensor:
        """A new dimension of size 1 before ``dim``."""
        at = dim % (len(self.shape) + 1)
        if at == 0 and self.place != "hbm":
            fail(f"{self.name}.expand_dim", dim, "a free dimension: the partition dimension stays first on chip")
        step = self.steps[at] * self.shape[at] if at < len(self.shape) else self.dtype.itemsize
        return self._view((*self.shape[:at], 1, *self.shape[at:]), (*self.steps[:at], step, *self.steps[at:]))

    def squeeze_dim(self, dim: int) -> Tensor:
        """Without a dimension of size 1."""
        at = dim % len(self.shape)
        if self.shape[at] != 1 or (at == 0 and self.place != "hbm"):
            fail(f"{self.name}.squeeze_dim", dim, f"a free dimension of size 1 in {self.shape}")
        return self._view(self.shape[:at] + self.shape[at + 1 :], self.steps[:at] + self.steps[at + 1 :])

    def broadcast(self, dim: int, size: int) -> Tensor:
        """Repeat a dimension of size 1 without a copy; the view is for reading."""
        at = dim % len(self.shape)
        if self.shape[at] != 1:
            fail(f"{self.name}.broadcast", dim, f"a dimension of size 1 in {self.shape}")
        if at == 0 and self.place != "hbm":
            fail(f"{self.name}.broadcast", dim, "a free dimension", "No engine reads one partition for many.")
        shape = (*self.shape[:at], int(size), *self.shape[at + 1 :])
        return self._view(shape, (*self.steps[:at], 0, *self.steps[at + 1 :]), False)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """``start:end:step`` of one dimension."""
        return self[(slice(None),) * (dim % len(self.shape)) + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> Tensor:
        """One index of a dimension, which goes: an integer, a register, or a one-element tensor (read when used)."""
        at = dim % len(self.shape)
        if not isinstance(index, Views):
            return self[(slice(None),) * at + (index,)]
        if at == 0 and self.place != "hbm":
            fail(f"{self.name}.select", dim, "a free dimension on chip")
        shape, steps = self.shape[:at] + self.shape[at + 1 :], self.steps[:at] + self.steps[at + 1 :]
        from vllm_neuron.nki.standin.pattern import Indirect

        last = (shape or (1,), steps or (self.dtype.itemsize,))
        return Indirect(self, last[0], last[1], self.start, self.dtype, index, None, self.steps[at], self.shape[at])

    def vector_select(self, dim: int, vector_offset: Tensor) -> Tensor:
        """Row ``p`` is row ``vector_offset[p]`` of this HBM tensor: a gather or scatter for DMA."""
        if dim != 0 or self.place != "hbm":
            fail(f"{self.name}.vector_select", dim, "dimension 0 of a tensor in hbm")
        from vllm_neuron.nki.standin.pattern import Indirect

        shape = (vector_offset.shape[0], *self.shape[1:])
        steps = (0, *self.steps[1:])
        return Indirect(self, shape, steps, self.start, self.dtype, None, vector_offset, self.steps[0], self.shape[0])

    def view(self, dtype: Any) -> Tensor:
        """The same bytes as another type; the last dimension scales with the element size."""
        target = as_dtype(dtype)
        if target is None:
            fail(f"{self.name}.view", dtype, "an element type of nki.language")
        have, want = self.dtype.itemsize, target.itemsize
        shape, steps = list(self.shape), list(self.steps)
        if have != want:
            total = shape[-1] * have
            if steps[-1] != have or total % want or self.start % want or any(s % want for s in steps[:-1]):
                fail(f"{self.name}.view", dtype, f"a last dimension of contiguous bytes, {total} divisible by {want}")
            shape[-1] = total // want
            steps[-1] = want
        return type_of(self)(self.storage, tuple(shape), tuple(steps), self.start, target, self.whole)

    reinterpret_cast = view

    def is_contiguous(self) -> bool:
        """Whether the view is row-major without gaps (free dimensions only on chip)."""
        first = 0 if self.place == "hbm" else 1
        want = contiguous(self.shape, self.dtype.itemsize)
        return all(
            n == 1 or s == w for n, s, w in zip(self.shape[first:], self.steps[first:], want[first:], strict=True)
        )

    def is_indirect(self) -> bool:
        """Whether the address is read from a tensor or a register when the view is used."""
        return False

    def get_pattern(self) -> list[list[int]]:
        """The view as ``[[stride, count], ...]``, in elements."""
        return [[stride, count] for stride, count in zip(self.strides, self.shape, strict=True)]

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: Any = None,
        scalar_offset: Any = None,
        vector_offset: Tensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> Tensor:
        """A free access pattern: ``[[stride, count], ...]`` in elements of the flat storage.

        Args:
            pattern: one pair a dimension; the first is the partition on chip.
            offset: elements from the first of this view to the first of the new one.
            scalar_offset: a register or a one-element tensor; its value times the stride of ``indirect_dim`` of this
                tensor is added to the offset when the view is used.
            vector_offset: ``[P, 1]`` integers; index times the stride of ``indirect_dim`` replaces what the first
                pair's stride would add. Only DMA takes such a view.
            indirect_dim: dimension of this tensor that the indices count.
            dtype: other element type; the pattern then counts elements of that type.
        """
        from vllm_neuron.nki.standin.pattern import access

        return access(self, pattern, offset or 0, scalar_offset, vector_offset, indirect_dim, dtype)


def type_of(view: Views) -> type[Tensor]:
    """The plain tensor class, also for an indirect view."""
    from vllm_neuron.nki.standin.tensor import Tensor

    if view.is_indirect():
        fail(f"{view.name}", "an indirect view", "a plain view", "Slice before .select, .vector_select or .ap.")
    return Tensor


def _reshaped(shape: Shape, steps: Shape, new: Shape) -> Shape | None:
    """Steps of ``new`` over the same memory, or None when that takes a copy."""
    old = [(n, s) for n, s in zip(shape, steps, strict=True) if n != 1]
    result: list[int] = []
    taken = 0
    count, step = 1, steps[-1] if steps else 1
    for n in reversed(new):
        if n == 1:
            result.append(result[-1] if result else step)
            continue
        if count == 1:
            taken += 1
            count, step = old[-taken]
        while count < n or count % n:
            taken += 1
            if taken > len(old) or old[-taken][1] != step * count:
                return None
            count *= old[-taken][0]
        result.append(step)
        count //= n
        step *= n
    return tuple(reversed(result))
