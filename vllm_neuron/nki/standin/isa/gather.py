"""Data movement between and inside partitions: shuffle, gathers, nonzero."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.tensor import Tensor

QUADRANT = 32
KEEP = 255
GROUP = 16
MAX_INDICES = 4096
_WIDTHS = (1, 2, 4, 8, 16, 32)


def nc_stream_shuffle(dst: Tensor, src: Tensor, shuffle_mask: Sequence[int], name: str | None = None) -> None:
    """In each 32-partition quadrant ``dst[i] = src[shuffle_mask[i]]``; 255 leaves ``dst[i]`` as it is."""
    core = current("nc_stream_shuffle")
    s = o.operand(src, "nc_stream_shuffle.src", o.CHIP)
    t = o.target(dst, "nc_stream_shuffle.dst")
    if s.dtype != t.dtype:
        fail("nc_stream_shuffle.dst", t.dtype, f"{s.dtype}, the type of src")
    if o.elements(s) != o.elements(t):
        fail("nc_stream_shuffle.dst", t.shape, f"{o.elements(s)} elements a partition, as in {s.shape}")
    mask = [int(m) for m in shuffle_mask]
    if len(mask) != QUADRANT or any(not (0 <= m < QUADRANT or m == KEEP) for m in mask):
        fail("nc_stream_shuffle.shuffle_mask", mask, f"{QUADRANT} numbers from 0 to {QUADRANT - 1}, or {KEEP}")
    values = s.array.reshape(s.shape[0], -1)
    pairs = [
        (base + i, base + m)
        for base in range(0, t.shape[0], QUADRANT)
        for i, m in enumerate(mask)
        if m != KEEP and base + i < t.shape[0]
    ]
    outside = [m for _, m in pairs if m >= s.shape[0]]
    if outside:
        fail("nc_stream_shuffle.shuffle_mask", outside[0], f"a partition of src, which has {s.shape[0]}")
    to, start = [list(side) for side in zip(*pairs, strict=True)]
    state = s.written()
    if state is not True and (state is False or not state.reshape(s.shape[0], -1)[start].all()):
        fail("nc_stream_shuffle.src", f"partitions of {s!r} never written", "partitions written before they are read")
    o.note_read(s)
    t.array[to] = values[start].reshape(len(to), *t.shape[1:])
    keep = np.zeros((t.shape[0],) + (1,) * (len(t.shape) - 1), np.bool_)
    keep[to] = True
    t.mark(np.broadcast_to(keep, t.shape))
    core.tick("vector", "nc_stream_shuffle", max(FIXED_CYCLES, o.elements(s)))


def nc_n_gather(dst: Tensor, data: Tensor, indices: Tensor, name: str | None = None) -> None:
    """In each partition ``dst[p, i] = data[p, indices[p, i]]``, with the free dimensions flattened; all in SBUF."""
    core = current("nc_n_gather")
    d = o.source(data, "nc_n_gather.data", o.SBUF)
    i = o.source(indices, "nc_n_gather.indices", o.SBUF)
    t = o.target(dst, "nc_n_gather.dst", o.SBUF)
    o.same(i, t, "nc_n_gather.dst")
    if i.shape[0] != d.shape[0]:
        fail("nc_n_gather.indices", i.shape, f"{d.shape[0]} partitions, as data has {d.shape}")
    if t.dtype != d.dtype:
        fail("nc_n_gather.dst", t.dtype, f"{d.dtype}, the type of data")
    if i.dtype != "uint32":
        fail("nc_n_gather.indices", i.dtype, "uint32")
    at = i.array.reshape(i.shape[0], -1)
    if at.max() >= o.elements(d):
        fail("nc_n_gather.indices", int(at.max()), f"0 to {o.elements(d) - 1}, as data has {d.shape}")
    values = np.take_along_axis(d.array.reshape(d.shape[0], -1), at.astype(np.int64), axis=1)
    o.store(t, values)
    core.tick("gpsimd", "nc_n_gather", max(FIXED_CYCLES, o.elements(i)))


def local_gather(
    dst: Tensor,
    src_buffer: Tensor,
    index: Tensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> None:
    """Each group of 16 partitions gathers with its own indices, read column by column from the group's 16 rows.

    ``dst[p, i] = src_buffer[p, flat[i]]`` where an index counts runs of ``num_elem_per_idx`` elements.
    """
    core = current("local_gather")
    s = o.source(src_buffer, "local_gather.src_buffer", o.SBUF)
    i = o.source(index, "local_gather.index", o.SBUF)
    t = o.target(dst, "local_gather.dst", o.SBUF)
    rows = s.shape[0]
    if i.shape[0] != rows or rows % GROUP:
        fail("local_gather.index", i.shape, f"{rows} partitions, a multiple of {GROUP}")
    if i.dtype != "uint16":
        fail("local_gather.index", i.dtype, "uint16")
    if num_elem_per_idx not in _WIDTHS:
        fail("local_gather.num_elem_per_idx", num_elem_per_idx, f"one of {_WIDTHS}")
    if t.dtype != s.dtype:
        fail("local_gather.dst", t.dtype, f"{s.dtype}, the type of src_buffer")
    most = GROUP * o.elements(i)
    valid = most if num_valid_indices is None else int(num_valid_indices)
    if not 1 <= valid <= min(most, MAX_INDICES):
        fail("local_gather.num_valid_indices", valid, f"1 to {min(most, MAX_INDICES)}")
    if t.shape[0] != rows or o.elements(t) != valid * num_elem_per_idx:
        fail("local_gather.dst", t.shape, f"{rows} partitions of {valid * num_elem_per_idx} elements")
    runs = s.array.reshape(rows, -1, num_elem_per_idx)
    flat = i.array.reshape(rows, -1)
    result = np.empty((rows, valid, num_elem_per_idx), s.dtype.numpy)
    for start in range(0, rows, GROUP):
        chosen = flat[start : start + GROUP].flatten(order="F")[:valid].astype(np.int64)
        if chosen.max() >= runs.shape[1]:
            fail("local_gather.index", int(chosen.max()), f"0 to {runs.shape[1] - 1}")
        result[start : start + GROUP] = runs[start : start + GROUP, chosen]
    o.store(t, result)
    core.tick("gpsimd", "local_gather", max(FIXED_CYCLES, math.ceil(valid * num_elem_per_idx)))


def nonzero_with_count(
    dst: Tensor, src: Tensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> None:
    """Indices of the non-zero elements, padding, and their count in the last place.

    Reads and writes partitions 0, 16, ..., 112 only; the others of ``dst`` stay as they are.
    """
    core = current("nonzero_with_count")
    s = o.operand(src, "nonzero_with_count.src", o.SBUF)
    t = o.target(dst, "nonzero_with_count.dst", o.SBUF)
    if s.dtype not in ("float32", "int32"):
        fail("nonzero_with_count.src", s.dtype, "float32 or int32")
    if t.dtype != "int32":
        fail("nonzero_with_count.dst", t.dtype, "int32")
    if t.shape[0] != s.shape[0] or o.elements(t) != o.elements(s) + 1:
        fail("nonzero_with_count.dst", t.shape, f"{s.shape[0]} partitions of {o.elements(s) + 1} elements")
    width = o.elements(s)
    o.note_read(s)
    for p in range(0, s.shape[0], GROUP):
        line = s[p : p + 1]
        if line.storage.written is not True:
            o.unwritten(line, "nonzero_with_count.src")
        found = np.flatnonzero(line.array.reshape(-1))
        out = np.full(width + 1, padding_val, np.int32)
        out[: len(found)] = found + index_offset
        out[width] = len(found)
        o.store(t[p : p + 1], out)
    core.tick("gpsimd", "nonzero_with_count", max(FIXED_CYCLES, width))
