"""Tensors at manual addresses that overlap: a write to one ends the life of what the others hold there.

Nothing is really shared. A write marks the overlapped elements of the other tensors as not written, so that a later
read of them is an error, as it would be garbage on hardware.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from vllm_neuron.nki.standin.memory import Space, Storage

if TYPE_CHECKING:
    from vllm_neuron.nki.standin.tensor import Tensor


def place(space: Space, storage: Storage, start: int) -> None:
    """Put a storage at a byte of its partitions, and note which live ones it overlaps."""
    storage.at = start
    for reference in space.placed:
        other = reference()
        if other is not None and _overlap(storage, other):
            storage.neighbours.append(reference)
            other.neighbours.append(weakref.ref(storage))
    space.placed.append(weakref.ref(storage))


def _overlap(a: Storage, b: Storage) -> bool:
    return (
        a.at < b.at + b.row
        and b.at < a.at + a.row
        and a.first < b.first + b.shape[0]
        and b.first < a.first + a.shape[0]
    )


def overwrite(t: Tensor) -> None:
    """A view was written: what overlapping tensors hold under it is lost."""
    storage = t.storage
    inside = t.start % storage.row
    low = storage.at + inside
    high = low + sum((n - 1) * s for n, s in zip(t.shape[1:], t.steps[1:], strict=True)) + t.dtype.itemsize
    first = storage.first + t.start // storage.row
    alive = []
    for reference in storage.neighbours:
        other = reference()
        if other is None:
            continue
        alive.append(reference)
        rows = slice(max(first - other.first, 0), max(first + t.shape[0] - other.first, 0))
        size = other.dtype.itemsize
        columns = slice(max(low - other.at, 0) // size, max(-(-(high - other.at) // size), 0))
        if other.written is False:
            continue
        flags = other.flags().reshape(other.shape[0], -1)[rows, columns]
        if flags.any():
            flags[...] = np.False_
            other.lost_to = storage.name
    storage.neighbours = alive
