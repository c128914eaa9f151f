"""DMA: copies between HBM and SBUF, gathers and scatters, transposes and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.ends import End
from vllm_neuron.nki.standin.isa.enums import dge_mode as modes
from vllm_neuron.nki.standin.isa.enums import engine as engines
from vllm_neuron.nki.standin.isa.enums import oob_mode as bounds
from vllm_neuron.nki.standin.ops import operator
from vllm_neuron.nki.standin.pattern import Indirect
from vllm_neuron.nki.standin.tensor import Tensor
from vllm_neuron.nki.standin.views import Shape

MAX_SOURCES = 16
_PERMUTATIONS: dict[int, Shape] = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _convert(values: Any, target: Tensor) -> Any:
    """Values in the target's type, through fp32 when the types differ."""
    want = target.dtype.numpy
    if values.dtype == want:
        return values
    return o.cast(values.astype(np.float32, copy=False), want)


def dma_copy(
    dst: Tensor,
    src: Tensor,
    dst_rmw_op: Any = None,
    oob_mode: Any = bounds.error,
    dge_mode: Any = modes.unknown,
    unique_indices: bool = True,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> None:
    """Copy between HBM and SBUF, either way: equal element counts in row-major order, cast through fp32.

    ``.ap(vector_offset=...)`` gathers or scatters rows; with ``oob_mode.skip`` rows outside leave ``dst`` untouched.
    ``dst_rmw_op=nl.add`` adds to what is at ``dst``.
    """
    core = current("dma_copy")
    t = End(dst, "dma_copy.dst", oob_mode)
    s = End(src, "dma_copy.src", oob_mode)
    if t.tensor.size != s.tensor.size:
        fail("dma_copy.src", s.shape, f"{t.tensor.size} elements, as dst has {t.shape}")
    if dge_mode is modes.hwdge and (t.picked is not None or s.picked is not None):
        fail("dma_copy.dge_mode", dge_mode, "dge_mode.swdge or unknown for a gather or scatter")
    if dge_mode is modes.hwdge and t.tensor.dtype != s.tensor.dtype:
        fail("dma_copy.src", s.tensor.dtype, f"{t.tensor.dtype}, the type of dst, with dge_mode.hwdge")
    if t.plain is not None:
        o.target(t.plain, "dma_copy.dst", o.DMA)
    values = s.read()
    if values.shape != t.shape:
        values = values.reshape(t.shape)
    values = _convert(values, t.tensor)
    if dst_rmw_op is not None:
        values = _modified(t, values, dst_rmw_op, oob_mode)
    t.write(values, _kept(s, t))
    _count(core, "dma_copy", s, t)


def _kept(s: End, t: End) -> Any:
    """Rows of dst that a gather reached; None for all."""
    if s.inside is None or s.inside.all():
        return None
    if s.inside.ndim == 0:
        return np.zeros(t.shape[0], np.bool_)
    if len(s.inside) != t.shape[0]:
        fail("dma_copy.dst", t.shape, f"{len(s.inside)} rows, as the gather has, when rows are skipped")
    return s.inside


def _modified(t: End, values: Any, op: Any, oob: Any) -> Any:
    if operator(op, "dma_copy.dst_rmw_op", 2).name != "add":
        fail("dma_copy.dst_rmw_op", op, "nl.add")
    if oob is bounds.skip:
        fail("dma_copy.oob_mode", oob, "oob_mode.error with dst_rmw_op")
    if t.picked is not None and len(np.unique(t.picked)) != len(t.picked):
        fail("dma_copy.dst", "repeated indices", "each index once in a scatter that adds")
    old = t.read().astype(np.float32)
    return o.cast(old + values.astype(np.float32), t.tensor.dtype.numpy)


def _count(core: Core, name: str, s: End, t: End) -> None:
    size = _moved(s, t)
    if core.events is not None:
        core.reads.append(s.tensor.storage.serial)
        for end in (s.tensor, t.tensor):
            if isinstance(end, Indirect):
                core.reads += [i.storage.serial for i in (end.scalar, end.vector) if isinstance(i, Tensor)]
        core.writes[:] = [t.tensor.storage.serial]
    run = min(_run(s.tensor), _run(t.tensor))
    core.move(name, s.tensor.place, t.tensor.place, size, max(1, size // run))


def _run(t: Tensor) -> int:
    """Bytes of a contiguous run of a view; partitions of SBUF are apart."""
    run = t.dtype.itemsize
    first = 0 if t.place == "hbm" else 1
    for n, step in zip(reversed(t.shape[first:]), reversed(t.steps[first:]), strict=True):
        if n != 1 and step != run:
            break
        run *= n
    return run


def _moved(s: End, t: End) -> int:
    """Bytes moved: of the end in HBM, without skipped rows."""
    end = s if s.tensor.place == "hbm" and t.tensor.place != "hbm" else t
    rows = next((side.inside for side in (s, t) if side.inside is not None), None)
    share = 1.0 if rows is None else float(rows.mean())
    return round(end.tensor.size * end.tensor.dtype.itemsize * share)


def dma_transpose(
    dst: Tensor,
    src: Tensor,
    axes: Sequence[int] | None = None,
    dge_mode: Any = modes.unknown,
    oob_mode: Any = bounds.error,
    name: str | None = None,
) -> None:
    """Transpose through DMA: ``[1, 0]``, ``[2, 1, 0]`` or ``[3, 1, 2, 0]``; an indirect ``src`` gathers first."""
    core = current("dma_transpose")
    t = End(dst, "dma_transpose.dst", oob_mode)
    s = End(src, "dma_transpose.src", oob_mode)
    order = _PERMUTATIONS.get(len(s.shape))
    if order is None:
        fail("dma_transpose.src", s.shape, "2, 3 or 4 dimensions")
    if axes is not None and tuple(axes) != order:
        fail("dma_transpose.axes", tuple(axes), str(order))
    if s.tensor.dtype != t.tensor.dtype:
        fail("dma_transpose.dst", t.tensor.dtype, f"{s.tensor.dtype}, the type of src")
    if s.inside is not None and not s.inside.all():
        fail("dma_transpose.src", "skipped rows", "indices inside the tensor")
    result = tuple(s.shape[d] for d in order)
    if t.shape != result:
        fail("dma_transpose.dst", t.shape, f"{result}, the transpose of {s.shape}")
    _transposable(s, t, dge_mode)
    t.write(np.ascontiguousarray(s.read().transpose(order)), None)
    _count(core, "dma_transpose", s, t)


def _transposable(s: End, t: End, mode: Any) -> None:
    if s.tensor.dtype.itemsize not in (2, 4):
        fail("dma_transpose.src", s.tensor.dtype, "elements of 2 or 4 bytes")
    if mode is modes.hwdge and (s.shape[0] != 16 or s.shape[-1] % 128 or s.tensor.dtype.itemsize != 2):
        fail(
            "dma_transpose.src", repr(s.tensor), "16 rows, a last size divisible by 128 and 2-byte elements with hwdge"
        )
    if s.picked is not None and (s.tensor.dtype.itemsize != 2 or len(s.inside) % 16):
        fail("dma_transpose.src", repr(s.tensor), "2-byte elements and a multiple of 16 indices for a gather")


def dma_compute(dst: Tensor, srcs: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
    """``dst = srcs[0] + srcs[1] + ...`` inside the DMA engines, in fp32.

    Takes both published orders of the positional arguments: ``(dst, srcs, reduce_op, scales)`` and
    ``(dst, srcs, scales, reduce_op)``. Scales must be 1.0 and the operator ``nl.add``.
    """
    core = current("dma_compute")
    _sum_only(args, kwargs)
    if not 1 <= len(srcs) <= MAX_SOURCES:
        fail("dma_compute.srcs", len(srcs), f"1 to {MAX_SOURCES} tensors")
    mode = kwargs.get("oob_mode", bounds.error)
    t = End(dst, "dma_compute.dst", mode)
    total: Any = None
    sides = []
    for i, src in enumerate(srcs):
        s = End(src, f"dma_compute.srcs[{i}]", mode)
        if s.tensor.size != t.tensor.size:
            fail(f"dma_compute.srcs[{i}]", s.shape, f"{t.tensor.size} elements, as dst has {t.shape}")
        values = s.read().astype(np.float32).reshape(t.shape)
        total = values if total is None else total + values
        sides.append(s)
    t.write(o.cast(total, t.tensor.dtype.numpy), None)
    for s in sides:
        _count(core, "dma_compute", s, t)
    core.counts.instructions["dma"] -= len(sides) - 1


def _sum_only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse anything but a plain sum."""
    known = {"scales", "reduce_op", "oob_mode", "dge_mode", "unique_indices", "name", "engine"}
    for name in kwargs:
        if name not in known:
            fail("dma_compute", name, f"one of {', '.join(sorted(known))}")
    given = [*args, kwargs.get("scales"), kwargs.get("reduce_op")]
    operators = [value for value in given if value is not None and not isinstance(value, list | tuple)]
    scales = [value for value in given if isinstance(value, list | tuple)]
    if len(args) > 2 or len(operators) > 1 or len(scales) > 1:
        fail("dma_compute", given, "one list of scales and one operator")
    for op in operators:
        if operator(op, "dma_compute.reduce_op", 2).name != "add":
            fail("dma_compute.reduce_op", op, "nl.add")
    for scale in scales:
        if any(value != 1.0 for value in scale):
            fail("dma_compute.scales", scale, "1.0 for each source")
