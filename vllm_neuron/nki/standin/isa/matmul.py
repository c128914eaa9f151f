"""The tensor engine: matrix products into PSUM and transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES, FP32_PASSES, FP32_TRANSPOSE_PASSES
from vllm_neuron.nki.standin.dtypes import FP8
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa import row_tiles
from vllm_neuron.nki.standin.isa.enums import engine as engines
from vllm_neuron.nki.standin.isa.enums import get_nc_version, matmul_perf_mode, nc_version
from vllm_neuron.nki.standin.memory import PSUM_BANK_BYTES
from vllm_neuron.nki.standin.tensor import Tensor

STATIONARY_FREE = 128
MOVING_FREE = 512
VECTOR_TRANSPOSE = 32
_TILES = (32, 64, 128)
_TARGET = "The target is trn2 unless NEURON_PLATFORM_TARGET_OVERRIDE says otherwise."
_WIDE = ("float32", "tfloat32")
_TYPES = (*_WIDE, "bfloat16", "float16", *sorted(FP8))


def nc_matmul(
    dst: Tensor,
    stationary: Tensor,
    moving: Tensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> None:
    """``dst[M, N] = stationary[K, M].T @ moving[K, N]`` into PSUM, with fp32 accumulation.

    Args:
        accumulate: True adds to what is there, False overwrites; None overwrites elements that were never written since
            the tensor was allocated and adds to the others.
        is_transpose: ``moving`` is an identity: an exact transpose of ``stationary`` in its own type.
        perf_mode: ``double_row``: operands ``[K, 2, free]`` in fp8, the product runs over K and the pair.
        tile_position, tile_size: (row, column) start and size of the part of the array; matmuls in a row on different
            row tiles share cycles, see ``isa.row_tiles``. Column tiles are counted as if nothing else ran.
    """
    core = current("nc_matmul")
    s = o.source(stationary, "nc_matmul.stationary", o.SBUF)
    m = o.source(moving, "nc_matmul.moving", o.SBUF)
    t = o.target(dst, "nc_matmul.dst", o.PSUM)
    double = perf_mode is matmul_perf_mode.double_row
    rows, columns = _check(s, m, t, double, is_transpose)
    tile = None
    if tile_position or tile_size:
        _check_tiling(tile_position, tile_size, s.shape[0], rows)
        tile = row_tiles.tile(tile_position, tile_size, s, m, t)
    left, right = s.array, m.array
    if double:
        left = left.reshape(-1, rows)
        right = right.reshape(-1, columns)
    else:
        left = left.reshape(left.shape[0], rows)
        right = right.reshape(right.shape[0], columns)
    if is_transpose:
        _overwrite(t, _exact_transpose(left, right, rows, columns))
        _count(core, False, s, columns, 0)
        return
    product = np.matmul(left.T.astype(np.float32, copy=False), right.astype(np.float32, copy=False))
    accumulate_into(t, product, accumulate)
    cycles = _cycles(s, columns)
    running = core.tiles
    shared = row_tiles.shared(running, tile, cycles)
    core.tick("tensor", "nc_matmul", cycles, shared)
    core.counts.matmul_cycles += cycles - shared
    core.tiles = row_tiles.after(running, tile, cycles)


def _cycles(s: Tensor, columns: int) -> float:
    """One cycle a moving row, four in fp32; short products cost the fixed start-up."""
    return max(FIXED_CYCLES, columns * (FP32_PASSES if s.dtype in _WIDE else 1))


def _check(s: Tensor, m: Tensor, t: Tensor, double: bool, is_transpose: bool) -> tuple[int, int]:
    """Rows and columns of the product, after every limit was checked."""
    for argument, operand in (("stationary", s), ("moving", m)):
        if operand.dtype not in _TYPES:
            fail(f"nc_matmul.{argument}", operand.dtype, f"one of {', '.join(_TYPES)}")
        if operand.dtype == "float8_e4m3fn" and get_nc_version() < nc_version.gen4:
            fail(f"nc_matmul.{argument}", operand.dtype, "float8_e4m3 or float8_e5m2 before trn3", _TARGET)
        if double and (operand.dtype not in FP8 or len(operand.shape) < 3 or operand.shape[1] != 2):
            fail(f"nc_matmul.{argument}", repr(operand), "an fp8 tile [K, 2, free] with perf_mode=double_row")
    if (s.dtype in _WIDE) != (m.dtype in _WIDE):
        fail("nc_matmul.moving", f"{m.dtype} with stationary {s.dtype}", "both fp32, or none of the two")
    pair = 2 if double else 1
    rows = s.size // s.shape[0] // pair
    columns = m.size // m.shape[0] // pair
    if s.shape[0] != m.shape[0]:
        fail("nc_matmul.moving", f"{m.shape[0]} partitions", f"{s.shape[0]} partitions, as stationary has {s.shape}")
    if rows > STATIONARY_FREE:
        fail("nc_matmul.stationary", f"free size {rows} in {s.shape}", f"at most {STATIONARY_FREE}")
    if columns > MOVING_FREE:
        fail("nc_matmul.moving", f"free size {columns} in {m.shape}", f"at most {MOVING_FREE}")
    if t.shape[0] != rows or t.size != rows * columns:
        fail("nc_matmul.dst", t.shape, f"({rows}, {columns})")
    _inside_bank(t)
    if is_transpose:
        if t.dtype.itemsize != s.dtype.itemsize:
            fail("nc_matmul.dst", t.dtype, f"{s.dtype}, the type of stationary, with is_transpose=True")
    elif t.dtype != "float32" and not (t.dtype == "bfloat16" and get_nc_version() >= nc_version.gen4):
        fail("nc_matmul.dst", t.dtype, "float32, or bfloat16 on trn3", _TARGET)
    return rows, columns


def _check_tiling(position: Sequence[int], size: Sequence[int], contraction: int, rows: int) -> None:
    if len(position) != 2 or len(size) != 2:
        fail("nc_matmul.tile_size", (tuple(position), tuple(size)), "tile_position and tile_size, both (row, column)")
    for axis, need in ((0, contraction), (1, rows)):
        start, extent = int(position[axis]), int(size[axis])
        if extent not in _TILES or start % extent or start + extent > STATIONARY_FREE:
            fail("nc_matmul.tile_position", (start, extent), f"a size of {_TILES} and a start that is a multiple of it")
        if extent == _TILES[0] and get_nc_version() < nc_version.gen3:
            fail("nc_matmul.tile_size", extent, "64 or 128 before trn2", _TARGET)
        if need > extent:
            fail("nc_matmul.tile_size", extent, f"at least {need}, as stationary has")


def _inside_bank(t: Tensor) -> None:
    if t.storage.row <= PSUM_BANK_BYTES:
        return
    first = t.start % t.storage.row
    last = first + sum((n - 1) * s for n, s in zip(t.shape[1:], t.steps[1:], strict=True)) + t.dtype.itemsize - 1
    if first // PSUM_BANK_BYTES != last // PSUM_BANK_BYTES:
        fail("nc_matmul.dst", f"bytes {first} to {last} of {t!r}", f"one PSUM bank of {PSUM_BANK_BYTES} bytes")


def _exact_transpose(left: Any, right: Any, rows: int, columns: int) -> Any:
    identity = right.astype(np.float32)
    if columns != left.shape[0] or not np.array_equal(identity, np.eye(columns, dtype=np.float32)):
        fail("nc_matmul.moving", right.shape, f"the identity of {left.shape[0]} rows with is_transpose=True")
    return left.T


def _overwrite(t: Tensor, values: Any) -> None:
    o.store(t, values)


def accumulate_into(t: Tensor, product: Any, accumulate: bool | None) -> None:
    """Write a product to PSUM, or add it to what was written before."""
    if accumulate is False:
        _overwrite(t, product)
        return
    state = t.written()
    if accumulate and state is not True:
        o.unwritten(t, "nc_matmul.dst with accumulate=True")
    if state is False:
        _overwrite(t, product)
        return
    shaped = o.like(product, t)
    old = t.array
    total = old + shaped if old.dtype == np.float32 else old.astype(np.float32) + shaped
    o.store(t, total if state is True else np.where(state, total, shaped))


def nc_transpose(dst: Tensor, data: Tensor, engine: Any = engines.unknown, name: str | None = None) -> None:
    """``dst[F, P] = data[P, F].T`` with the free dimensions flattened.

    The tensor engine takes up to 128 x 128 from SBUF into PSUM and keeps the type; the vector engine up to 32 x 32.
    """
    core = current("nc_transpose")
    d = o.source(data, "nc_transpose.data")
    t = o.target(dst, "nc_transpose.dst")
    partitions, free = d.shape[0], d.size // d.shape[0]
    if t.shape[0] != free or t.size != d.size:
        fail("nc_transpose.dst", t.shape, f"({free}, {partitions}), the transpose of {d.shape}")
    small = partitions <= VECTOR_TRANSPOSE and free <= VECTOR_TRANSPOSE
    vector = engine is engines.vector or (engine is engines.unknown and t.place == "sbuf")
    if engine not in (engines.unknown, engines.vector, engines.tensor):
        fail("nc_transpose.engine", engine, "nisa.engine.tensor or nisa.engine.vector")
    if vector and not small:
        fail(
            "nc_transpose.data",
            f"{partitions} x {free}",
            f"at most {VECTOR_TRANSPOSE} x {VECTOR_TRANSPOSE} on the vector engine",
            "The tensor engine transposes 128 x 128 from SBUF into PSUM.",
        )
    if free > STATIONARY_FREE:
        fail("nc_transpose.data", f"free size {free} in {d.shape}", f"at most {STATIONARY_FREE}")
    if not vector:
        _on_tensor_engine(d, t)
    o.store(t, np.ascontiguousarray(d.array.reshape(partitions, free).T))
    _count(core, vector, d, partitions, free)


def _on_tensor_engine(d: Tensor, t: Tensor) -> None:
    if d.place != "sbuf":
        fail("nc_transpose.data", repr(d), "a tensor in SBUF on the tensor engine")
    if t.place != "psum":
        fail("nc_transpose.dst", repr(t), "a tensor in PSUM on the tensor engine")
    if t.dtype != d.dtype:
        fail("nc_transpose.dst", t.dtype, f"{d.dtype}, the type of data, on the tensor engine")


def _count(core: Core, vector: bool, d: Tensor, partitions: int, free: int) -> None:
    if vector:
        core.tick("vector", "nc_transpose", max(FIXED_CYCLES, free))
        return
    passes = FP32_TRANSPOSE_PASSES if d.dtype.itemsize == 4 else 1
    cycles = max(FIXED_CYCLES, partitions * passes)
    core.tick("tensor", "nc_transpose", cycles)
    core.counts.transpose_cycles += cycles
