"""Matmuls that run at the same time on different row tiles of the tensor engine.

The NKI documentation of ``nki.isa.nc_matmul`` (tiling mode) says that the array's 128 rows can be sliced into two tiles
of 64 or, from trn2 on, four of 32, that ``tile_position`` and ``tile_size`` choose one, and that this lets several
matmuls run in parallel. It gives no cycles for that, so only this much is counted: matmuls that follow each other on
the tensor engine, each on a row tile of its own, all of one size, take as long as the longest of them. An instruction
shares no cycles with those before it where

- it declares no row tile, or one whose rows are in use: the array must be free first;
- its operands are in other partitions than the rows of its tile, as a row of the array is fed by its own partition;
- its result goes to a PSUM bank that one of the others writes to;
- another instruction of the tensor engine or a barrier came between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_neuron.nki.standin.memory import PARTITIONS, PSUM_BANK_BYTES
from vllm_neuron.nki.standin.tensor import Tensor


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows of the array that a matmul uses, and the PSUM bank of its result."""

    start: int
    size: int
    bank: int


@dataclass(frozen=True, slots=True)
class Running:
    """Matmuls that run at the same time: their tiles, and the cycles of the longest."""

    tiles: tuple[RowTile, ...]
    cycles: float


def tile(position: Sequence[int], size: Sequence[int], s: Tensor, m: Tensor, t: Tensor) -> RowTile | None:
    """The row tile of a matmul, or None where it uses all rows or its operands are in other partitions."""
    start, rows = int(position[0]), int(size[0])
    if rows >= PARTITIONS or any(_partition(x) != start for x in (s, m)):
        return None
    return RowTile(start, rows, _bank(t))


def shared(running: Running | None, new: RowTile | None, cycles: float) -> float:
    """Cycles of a matmul that pass while those before it run."""
    return min(cycles, running.cycles) if running is not None and _joins(running, new) else 0.0


def after(running: Running | None, new: RowTile | None, cycles: float) -> Running | None:
    """What runs once a matmul was issued; None when the next one has to wait for it."""
    if new is None:
        return None
    if running is not None and _joins(running, new):
        return Running((*running.tiles, new), max(running.cycles, cycles))
    return Running((new,), cycles)


def _joins(running: Running, new: RowTile | None) -> bool:
    return new is not None and all(
        new.size == old.size and new.start != old.start and new.bank != old.bank for old in running.tiles
    )


def _partition(t: Tensor) -> int:
    return t.start // t.storage.row + t.storage.first


def _bank(t: Tensor) -> int:
    """The bank of a tensor's first byte."""
    storage = t.storage
    byte = t.start % storage.row
    kind, banks = storage.claim[:2]
    return (storage.at + byte) // PSUM_BANK_BYTES if kind == "manual" else banks[0] + byte // PSUM_BANK_BYTES
