"""Access patterns: ``Tensor.ap`` and its indirect forms, resolved when an instruction uses the view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import fail
from vllm_neuron.nki.standin.dtypes import DType, as_dtype
from vllm_neuron.nki.standin.memory import PARTITIONS
from vllm_neuron.nki.standin.tensor import Tensor
from vllm_neuron.nki.standin.views import Shape, Views


class Register:
    """A register of an engine: an integer that loops, slices and offsets may use; None until it is loaded."""

    __slots__ = ("value",)

    def __init__(self, value: int | None = None) -> None:
        self.value = value

    def __index__(self) -> int:
        if self.value is None:
            fail("register", "never loaded", "a value from register_load or register_move")
        return self.value

    __int__ = __index__

    def __bool__(self) -> bool:
        return self.__index__() != 0

    def __repr__(self) -> str:
        return f"register({self.value})"


class Indirect(Tensor):
    """A view whose address is known only when it is used.

    Attributes:
        base: the tensor that was indexed, for messages.
        scalar: register or one-element tensor that moves the whole pattern, or None.
        vector: ``[P, 1]`` indices, one for each index of the first dimension, or None.
        stride: bytes that one index moves.
        limit: indices that the indexed dimension has.
    """

    __slots__ = ("base", "limit", "scalar", "stride", "vector")

    def __init__(
        self,
        base: Views,
        shape: Shape,
        steps: Shape,
        start: int,
        dtype: DType,
        scalar: Any,
        vector: Tensor | None,
        stride: int,
        limit: int,
    ) -> None:
        super().__init__(base.storage, shape, steps, start, dtype)
        if base.is_indirect():
            fail(f"{base.name}", "an indirect view of an indirect view", "one dynamic address a view")
        self.base = base
        self.scalar = scalar
        self.vector = vector
        self.stride = stride
        self.limit = limit

    @property
    def array(self) -> NDArray[Any]:
        """Only instructions that take dynamic addresses resolve them."""
        fail(f"{self.name}.ap", "a dynamic address", "an instruction that takes dynamic addresses, e.g. nisa.dma_copy")

    def is_indirect(self) -> bool:
        """True."""
        return True

    def scalar_value(self) -> int:
        """The scalar offset's value now, in indices."""
        return 0 if self.scalar is None else integer(self.scalar, f"{self.name}.ap scalar_offset")

    def fixed(self) -> Tensor | None:
        """The plain view that a scalar offset selects now, or None when it lies outside the storage."""
        at = self.start + self.scalar_value() * self.stride
        last = at + sum((n - 1) * s for n, s in zip(self.shape, self.steps, strict=True)) + self.dtype.itemsize
        if at < 0 or last > len(self.storage.raw):
            return None
        return Tensor(self.storage, self.shape, self.steps, at, self.dtype)

    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Byte address of the first element of each index of dimension 0, and whether it is inside the storage."""
        assert self.vector is not None
        if self.vector.written() is not True:
            fail(f"{self.name}.ap vector_offset", self.vector.name, "indices that were all written")
        indices = self.vector.array.astype(np.int64).reshape(-1)[: self.shape[0]]
        starts = self.start + (indices + self.scalar_value()) * self.stride
        inner = sum((n - 1) * s for n, s in zip(self.shape[1:], self.steps[1:], strict=True)) + self.dtype.itemsize
        inside = (indices >= 0) & (starts >= 0) & (starts + inner <= len(self.storage.raw))
        return starts, inside


def integer(value: Any, argument: str) -> int:
    """The integer in a register, a one-element tensor or a number."""
    if isinstance(value, Tensor):
        if value.size != 1:
            fail(argument, value.shape, "one element")
        if value.written() is not True:
            fail(argument, value.name, "an element that was written")
        return int(value.array.reshape(-1)[0])
    try:
        return int(value.__index__())
    except AttributeError:
        fail(argument, type(value).__name__, "an integer, a register or a one-element tensor")


def access(
    base: Views,
    pattern: Sequence[Sequence[int]],
    offset: Any,
    scalar_offset: Any,
    vector_offset: Tensor | None,
    indirect_dim: int,
    dtype: Any,
) -> Tensor:
    """The body of ``Tensor.ap``."""
    kind = base.dtype if dtype is None else as_dtype(dtype)
    if kind is None:
        fail(f"{base.name}.ap dtype", dtype, "an element type of nki.language")
    size = kind.itemsize
    pairs = [(int(stride), int(count)) for stride, count in pattern]
    if not pairs or any(count < 1 for _, count in pairs):
        fail(f"{base.name}.ap pattern", pattern, "pairs [stride, count] with counts of at least 1")
    if base.place != "hbm" and pairs[0][1] > PARTITIONS:
        fail(f"{base.name}.ap pattern", pairs[0][1], f"at most {PARTITIONS} partitions")
    shape = tuple([count for _, count in pairs])
    steps = tuple([stride * size for stride, _ in pairs])
    start = base.start + integer(offset, f"{base.name}.ap offset") * size
    if scalar_offset is not None or vector_offset is not None:
        dim = indirect_dim % len(base.shape)
        if vector_offset is not None:
            if vector_offset.dtype.kind != "int" or vector_offset.place != "sbuf":
                fail(f"{base.name}.ap vector_offset", repr(vector_offset), "integers in sbuf")
            if vector_offset.size < shape[0]:
                fail(f"{base.name}.ap vector_offset", vector_offset.shape, f"{shape[0]} indices, one for each row")
            steps = (0, *steps[1:])
        stride = math.prod(base.shape[dim + 1 :]) * size
        return Indirect(base, shape, steps, start, kind, scalar_offset, vector_offset, stride, base.shape[dim])
    ends = [(n - 1) * s for n, s in zip(shape, steps, strict=True)]
    low = start + sum([e for e in ends if e < 0])
    high = start + sum([e for e in ends if e > 0]) + size
    if low < 0 or high > len(base.storage.raw):
        fail(
            f"{base.name}.ap",
            {"pattern": [list(p) for p in pairs], "offset": offset},
            f"elements 0 to {base.storage.numel - 1} of the storage, it reaches {low // size} to {high // size - 1}",
        )
    whole = base.whole and shape == base.shape and steps == base.steps and start == base.start
    return Tensor(base.storage, shape, steps, start, kind, whole)
