"""Index patterns: ``iota`` and ``affine_select``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.ops import OPS, operator
from vllm_neuron.nki.standin.pattern import integer
from vllm_neuron.nki.standin.tensor import Tensor

Pattern = Sequence[Sequence[int]]


def _affine(t: Tensor, pattern: Pattern, offset: Any, channel_multiplier: Any, what: str) -> Any:
    """``offset + p * channel_multiplier + sum(index * step)`` as int64 ``[P, elements]``."""
    pairs = [(int(step), int(count)) for step, count in pattern]
    if not 1 <= len(pairs) <= 4 or any(count < 1 for _, count in pairs):
        fail(f"{what}.pattern", pattern, "one to four pairs [step, count]")
    total = 1
    values: Any = np.zeros((), np.int64)
    for step, count in pairs:
        values = values[..., None] + np.arange(count, dtype=np.int64) * step
        total *= count
    if total != o.elements(t):
        fail(f"{what}.pattern", pattern, f"{o.elements(t)} elements, as a partition of {t!r} has")
    start = integer(offset, f"{what}.offset")
    channel = np.arange(t.shape[0], dtype=np.int64) * integer(channel_multiplier, f"{what}.channel_multiplier") + start
    return channel[:, None] + values.reshape(1, -1)


def iota(dst: Tensor, pattern: Pattern, offset: Any = 0, channel_multiplier: Any = 0, name: str | None = None) -> None:
    """``dst[p, i...] = offset + p * channel_multiplier + sum(i * step)`` in SBUF, cast to the type of ``dst``."""
    core = current("iota")
    t = o.target(dst, "iota.dst", o.SBUF)
    o.store(t, _affine(t, pattern, offset, channel_multiplier, "iota"))
    core.tick("gpsimd", "iota", max(FIXED_CYCLES, o.elements(t)))


def affine_select(
    dst: Tensor,
    pattern: Pattern,
    offset: Any = 0,
    channel_multiplier: Any = 0,
    on_true_tile: Tensor | None = None,
    on_false_value: float = 0.0,
    cmp_op: Any = OPS["equal"],
    name: str | None = None,
) -> None:
    """``dst = on_true_tile`` where ``cmp_op(offset + p * channel_multiplier + sum(i * step), 0)``, else a constant."""
    core = current("affine_select")
    if not isinstance(on_true_tile, Tensor):
        fail("affine_select.on_true_tile", on_true_tile, "a tensor in sbuf")
    d = o.source(on_true_tile, "affine_select.on_true_tile", o.SBUF)
    t = o.target(dst, "affine_select.dst", o.SBUF)
    o.same(t, d, "affine_select.on_true_tile")
    compare = operator(cmp_op, "affine_select.cmp_op", 2)
    if compare.kind != "compare":
        fail("affine_select.cmp_op", repr(compare), "a comparison, e.g. nl.greater_equal")
    value = _affine(t, pattern, offset, channel_multiplier, "affine_select")
    keep = compare.run(value, 0).reshape(t.shape)
    array = o.like(d.array, t)
    if d.dtype == t.dtype:
        o.store(t, np.where(keep, array, o.cast(np.float32(on_false_value).reshape(1), t.dtype.numpy)))
    else:
        o.store(t, np.where(keep, array.astype(np.float32), np.float32(on_false_value)))
    core.tick("gpsimd", "affine_select", max(FIXED_CYCLES, o.elements(t)))
