"""Top-8 instructions of the vector engine: the largest values of a row, where they are, and their replacement."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.tensor import Tensor

WIDTH = 8
MAX_ELEMENTS = 16384


def _data(t: Tensor, argument: str, least: int = WIDTH) -> Tensor:
    d = o.source(t, argument)
    if not least <= o.elements(d) <= MAX_ELEMENTS:
        fail(argument, f"{o.elements(d)} elements a partition in {d.shape}", f"{least} to {MAX_ELEMENTS}")
    return d


def _eight(t: Tensor, rows: int, argument: str) -> None:
    if t.shape[0] != rows or t.size != rows * WIDTH:
        fail(argument, t.shape, f"({rows}, {WIDTH})")


def max8(dst: Tensor, src: Tensor, name: str | None = None) -> None:
    """The 8 largest values of each partition, in descending order, into ``dst[P, 8]``."""
    core = current("max8")
    d = _data(src, "max8.src")
    t = o.target(dst, "max8.dst")
    _eight(t, d.shape[0], "max8.dst")
    values = o.fp32(d).reshape(d.shape[0], -1)
    top = np.partition(values, values.shape[1] - WIDTH, axis=1)[:, -WIDTH:]
    top.sort(axis=1)
    o.store(t, top[:, ::-1])
    core.tick("vector", "max8", max(FIXED_CYCLES, o.elements(d)))


def nc_find_index8(dst: Tensor, data: Tensor, vals: Tensor, name: str | None = None) -> None:
    """Index of the first occurrence of each of 8 values; equal values get ascending occurrences.

    Raises:
        KernelError: a value that isn't in its row (the hardware's result is undefined).
    """
    core = current("nc_find_index8")
    d = _data(data, "nc_find_index8.data")
    v = o.source(vals, "nc_find_index8.vals")
    t = o.target(dst, "nc_find_index8.dst")
    _eight(v, d.shape[0], "nc_find_index8.vals")
    _eight(t, d.shape[0], "nc_find_index8.dst")
    if t.dtype not in ("uint16", "uint32"):
        fail("nc_find_index8.dst", t.dtype, "uint16 or uint32")
    values = o.fp32(d).reshape(d.shape[0], -1)
    wanted = o.fp32(v).reshape(d.shape[0], WIDTH)
    taken = np.zeros(values.shape, np.bool_)
    rows = np.arange(d.shape[0])
    result = np.empty((d.shape[0], WIDTH), np.uint32)
    for j in range(WIDTH):
        hits = values == wanted[:, j : j + 1]
        free = hits & ~taken
        at = np.where(free.any(axis=1), free.argmax(axis=1), hits.argmax(axis=1))
        if not hits[rows, at].all():
            row = int(np.argmin(hits[rows, at]))
            fail("nc_find_index8.vals", f"{wanted[row, j]} in slot {j} of partition {row}", "values that occur in data")
        taken[rows, at] = True
        result[:, j] = at
    o.store(t, result)
    core.tick("vector", "nc_find_index8", max(FIXED_CYCLES, o.elements(d)))


def nc_match_replace8(
    dst: Tensor,
    data: Tensor,
    vals: Tensor,
    imm: float,
    dst_idx: Tensor | None = None,
    name: str | None = None,
) -> None:
    """Copy ``data`` with the first occurrence of each of 8 values replaced by ``imm``.

    Equal values replace one occurrence each; slots are processed from 7 down to 0. A value that isn't in its row
    replaces nothing. ``dst_idx[P, 8]`` gets the indices.
    """
    core = current("nc_match_replace8")
    d = _data(data, "nc_match_replace8.data", 1)
    v = o.source(vals, "nc_match_replace8.vals")
    t = o.target(dst, "nc_match_replace8.dst")
    _eight(v, d.shape[0], "nc_match_replace8.vals")
    o.same(d, t, "nc_match_replace8.dst")
    values = o.fp32(d).reshape(d.shape[0], -1).copy()
    wanted = o.fp32(v).reshape(d.shape[0], WIDTH)
    taken = np.zeros(values.shape, np.bool_)
    indices = np.zeros((d.shape[0], WIDTH), np.uint32)
    for j in range(WIDTH - 1, -1, -1):
        free = (values == wanted[:, j : j + 1]) & ~taken
        found = np.flatnonzero(free.any(axis=1))
        at = free[found].argmax(axis=1)
        taken[found, at] = True
        indices[found, j] = at
    values[taken] = np.float32(imm)
    o.store(t, values)
    if dst_idx is not None:
        _write_indices(dst_idx, indices)
    core.tick("vector", "nc_match_replace8", max(FIXED_CYCLES, o.elements(d)))


def _write_indices(dst_idx: Tensor, indices: Any) -> None:
    t = o.target(dst_idx, "nc_match_replace8.dst_idx")
    _eight(t, indices.shape[0], "nc_match_replace8.dst_idx")
    if t.dtype not in ("uint16", "uint32"):
        fail("nc_match_replace8.dst_idx", t.dtype, "uint16 or uint32")
    o.store(t, indices)
