"""Checks and casts that every instruction shares: buffers, partitions, written elements, shapes, fp32 and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import fail, local
from vllm_neuron.nki.standin.dtypes import FLOAT32_NUMPY, cast
from vllm_neuron.nki.standin.memory import PARTITIONS
from vllm_neuron.nki.standin.ops import Op
from vllm_neuron.nki.standin.pattern import Indirect
from vllm_neuron.nki.standin.tensor import Tensor

Array = NDArray[Any]

SBUF = ("sbuf",)
PSUM = ("psum",)
CHIP = ("sbuf", "psum")
DMA = ("hbm", "sbuf")
# Dimensions of an access pattern: the partition and four free ones; and elements a partition that it may span.
MAX_DIMENSIONS = 5
MAX_ELEMENTS = 65536
# Partitions that an access of a compute engine may span, by its first partition.
_SPAN = {0: 128, 32: 32, 64: 64, 96: 32}
_EXACT = frozenset((np.dtype(np.int32), np.dtype(np.uint32)))


def operand(t: Any, argument: str, buffers: tuple[str, ...]) -> Tensor:
    """A tensor in one of ``buffers``, with partitions that an engine can address.

    Raises:
        KernelError: not a tensor, another buffer, a dynamic address outside, too many partitions, a bad first one.
    """
    if type(t) is not Tensor:
        if type(t) is not Indirect:
            fail(argument, type(t).__name__, "a tensor")
        if t.vector is None:
            fixed = t.fixed()
            if fixed is None:
                fail(argument, t.scalar_value(), f"a scalar offset inside {t.base!r}")
            t = fixed
        else:
            fail(argument, "a vector_offset", "a plain view", "Only DMA gathers and scatters.")
    buffer = t.place
    if buffer not in buffers:
        fail(argument, f"{t!r}", f"a tensor in {' or '.join(buffers)}")
    if buffer != "hbm" and buffers is not DMA:
        storage = t.storage
        if len(t.shape) > MAX_DIMENSIONS:
            fail(argument, f"{len(t.shape)} dimensions in {t!r}", f"{MAX_DIMENSIONS - 1} free dimensions")
        if storage.row > MAX_ELEMENTS and t.size > MAX_ELEMENTS * t.shape[0]:
            fail(argument, f"{t.size // t.shape[0]} elements a partition of {t!r}", f"at most {MAX_ELEMENTS}")
        if t.steps[0] != storage.row and t.shape[0] > 1:
            fail(
                argument,
                f"{t!r} with a partition stride of {t.strides[0]} elements",
                "neighbouring partitions",
                "Engines neither skip nor repeat partitions: shuffle, transpose, multiply with ones, or use DMA.",
            )
        start = t.start // storage.row + storage.first
        if start:
            span = _SPAN.get(start)
            if span is None:
                fail(argument, f"start partition {start} of {t!r}", "a start at partition 0, 32, 64 or 96")
            if t.shape[0] > span:
                fail(
                    argument, f"{t.shape[0]} partitions from {start} of {t!r}", f"at most {span} from partition {start}"
                )
        elif t.shape[0] > PARTITIONS:
            fail(argument, t.shape[0], f"at most {PARTITIONS} partitions")
    return t


def source(t: Any, argument: str, buffers: tuple[str, ...] = CHIP) -> Tensor:
    """An operand that is read: every element of it was written before.

    Raises:
        KernelError: see ``operand``; and elements that were never written.
    """
    t = operand(t, argument, buffers)
    if t.storage.written is not True:
        unwritten(t, argument)
    note_read(t)
    return t


def note_read(t: Tensor) -> None:
    """Remember that the instruction at hand reads a tensor, when somebody wants its events."""
    core = local.core
    if core is not None and core.events is not None:
        core.reads.append(t.storage.serial)


def unwritten(t: Tensor, argument: str) -> None:
    """Refuse a tensor with elements that were never written."""
    state = t.written()
    if state is True:
        return
    lost = t.storage.lost_to
    if lost:
        count = t.size if state is False else int((~state).sum())
        what = f"{count} elements of {t!r} overwritten by {lost}"
        fail(argument, what, "elements that are still there", "The two overlap in their manual addresses.")
    if state is False:
        fail(argument, f"{t!r}, never written", "elements that were written before they are read")
    first = tuple(int(i) for i in np.argwhere(~state)[0])
    count = int((~state).sum())
    fail(argument, f"{count} elements of {t!r} never written, the first at {first}", "elements written before a read")


def target(t: Any, argument: str = "dst", buffers: tuple[str, ...] = CHIP) -> Tensor:
    """An operand that is written."""
    t = operand(t, argument, buffers)
    core = local.core
    if core is not None and core.events is not None:
        core.writes.append(t.storage.serial)
    if 0 in t.steps and any(s == 0 and n > 1 for s, n in zip(t.steps, t.shape, strict=True)):
        fail(argument, f"{t!r} with a repeated dimension", "a view with one place for each element")
    return t


def same(a: Tensor, b: Tensor, argument: str) -> None:
    """Same partitions and same elements a partition.

    Raises:
        KernelError: ``b`` differs from ``a``; instructions don't broadcast.
    """
    if a.shape == b.shape:
        return
    if a.shape[0] != b.shape[0] or a.size != b.size:
        fail(
            argument,
            b.shape,
            f"{a.shape[0]} partitions of {a.size // a.shape[0]} elements, as in {a.shape}",
            "Instructions don't broadcast: pass a view with a repeated dimension (.broadcast or .ap with stride 0).",
        )


def fp32(t: Tensor) -> Array:
    """The elements in fp32."""
    array = t.array
    return array if array.dtype is FLOAT32_NUMPY or array.dtype == FLOAT32_NUMPY else array.astype(FLOAT32_NUMPY)


def like(values: Array, t: Tensor) -> Array:
    """Values in the shape of ``t`` (same partitions, same number of elements)."""
    return values if values.shape == t.shape else values.reshape(t.shape)


def store(t: Tensor, values: Array) -> None:
    """Write values of the right element count, cast to the tensor's type."""
    array = t.array
    if values.shape != array.shape:
        values = values.reshape(array.shape)
    if values.dtype != array.dtype:
        kind = array.dtype.kind
        array[...] = cast(values, array.dtype) if kind in "iub" else values
    else:
        array[...] = values
    if t.storage.written is not True or t.storage.neighbours:
        t.mark()


def scalar(value: Any, data: Tensor, argument: str) -> Any:
    """A number, or ``[P, 1]`` fp32 values to broadcast along the free dimensions of ``data``.

    Raises:
        KernelError: a tensor that isn't one element for each partition of ``data``.
    """
    if type(value) is Tensor or type(value) is Indirect:
        vector = source(value, argument)
        if vector.size != data.shape[0] or vector.shape[0] != data.shape[0]:
            fail(argument, vector.shape, f"a number or a tensor ({data.shape[0]}, 1)")
        return fp32(vector).reshape((data.shape[0],) + (1,) * (len(data.shape) - 1))
    if isinstance(value, bool | int | float | np.integer | np.floating):
        return np.float32(value)
    try:
        return np.float32(value.__index__())
    except AttributeError:
        fail(argument, type(value).__name__, f"a number or a tensor ({data.shape[0]}, 1)")


def elements(t: Tensor) -> int:
    """Elements a partition."""
    return t.size // t.shape[0]


def binary(op: Op, a: Any, b: Any) -> Array:
    """``a op b`` in fp32; comparisons give 1.0 and 0.0."""
    result = op.run(a, b)
    return result if result.dtype == FLOAT32_NUMPY else result.astype(FLOAT32_NUMPY)


def bits(op: Op, a: Any, b: Any, argument: str) -> Array:
    """A bitwise operator on raw integers of one width."""
    for side in (a, b):
        if isinstance(side, np.ndarray) and side.dtype.kind not in "iub":
            fail(argument, side.dtype, f"integers for {op!r}", "Use .view(nl.int32) for the bits of a float.")
    return op.run(a, b)


def exact(*tensors: Tensor) -> bool:
    """Whether all are 32-bit integers: then arithmetic is exact instead of in fp32."""
    return all(t.array.dtype in _EXACT for t in tensors)
