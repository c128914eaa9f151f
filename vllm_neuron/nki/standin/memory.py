"""Memory of one core: storages, which of their elements were written, and what SBUF and PSUM hold at a time.

SBUF has 128 partitions of 192 KiB here, which is what every generation has: the NKI architecture guides of the AWS
Neuron documentation give 24 MiB (192 KiB a partition) for trn1, 28 MiB for trn2 and 32 MiB for trn3, part of it
reserved. PSUM has 128 partitions of 8 banks of 2 KiB on all of them.

A tensor occupies memory from its allocation until its last Python reference dies, so a loop that allocates a tile each
time does not grow; a compiler may free earlier, hence the peak is an upper bound of what an allocator needs.
"""

from __future__ import annotations

import itertools
import math
import weakref
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.dtypes import DType

PARTITIONS = 128
SBUF_BYTES = 192 * 1024
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2 * 1024
PSUM_BYTES = PSUM_BANKS * PSUM_BANK_BYTES


class MemoryRegion(StrEnum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


_PLACES = {MemoryRegion.sbuf: "sbuf", MemoryRegion.psum: "psum"}
_PLACES |= {MemoryRegion.private_hbm: "hbm", MemoryRegion.shared_hbm: "hbm"}


class Space:
    """Bytes a partition in use in SBUF, or whole and shared banks in PSUM.

    Tensors with a manual address count by the union of what they cover; ``aliasing`` watches those that overlap.
    """

    __slots__ = ("banks", "capacity", "covered", "live", "manual", "peak", "placed")

    def __init__(self, capacity: int, banked: bool = False) -> None:
        self.capacity = capacity
        self.live = 0
        self.peak = 0
        self.manual: dict[int, tuple[int, int]] = {}
        self.covered = 0
        self.placed: list[weakref.ref[Storage]] = []
        self.banks: list[int] | None = [0] * PSUM_BANKS if banked else None

    def take(self, size: int, address: int | None, key: int) -> Any:
        """Reserve ``size`` bytes a partition; returns the claim for ``give``, or None when there is no room."""
        if address is not None:
            if address < 0 or address + size > self.capacity:
                return None
            self.manual[key] = (address, address + size)
            self._cover()
            claim: Any = ("manual", key)
        elif self.banks is None:
            self.live += size
            claim = size
        else:
            claim = self._bank(size)
            if claim is None:
                return None
        used = self.used()
        if used > self.capacity:
            self.give(claim)
            return None
        if used > self.peak:
            self.peak = used
        return claim

    def used(self) -> int:
        """Bytes a partition in use now."""
        return self.live + self.covered

    def give(self, claim: Any) -> None:
        """Release what ``take`` returned."""
        if type(claim) is int:
            self.live -= claim
        elif claim[0] == "manual":
            self.manual.pop(claim[1], None)
            self._cover()
            self.placed = [reference for reference in self.placed if reference() is not None]
        else:
            assert self.banks is not None
            for bank in claim[1]:
                self.banks[bank] -= claim[2]
            self.live -= claim[2] * len(claim[1])

    def _cover(self) -> None:
        """Length of the union of the manual ranges."""
        self.covered = end = 0
        for low, high in sorted(self.manual.values()):
            if high > end:
                self.covered += high - max(low, end)
                end = high

    def _bank(self, size: int) -> tuple[str, range, int] | None:
        """First bank with room; a tensor larger than a bank takes whole neighbouring banks."""
        assert self.banks is not None
        count = max(1, math.ceil(size / PSUM_BANK_BYTES))
        each = size if count == 1 else PSUM_BANK_BYTES
        for start in range(PSUM_BANKS - count + 1):
            banks = range(start, start + count)
            if all(self.banks[bank] + each <= PSUM_BANK_BYTES for bank in banks):
                for bank in banks:
                    self.banks[bank] += each
                self.live += each * count
                return ("bank", banks, each)
        return None


_serials = itertools.count()


class Storage:
    """The memory behind a tensor and all its views.

    Attributes:
        raw: the bytes.
        numel: elements.
        dtype: element type at allocation.
        name: for messages.
        region: where it lives.
        place: ``hbm``, ``sbuf`` or ``psum``.
        first: partition of the first row, from a manual address.
        at: first byte of its partitions, from a manual address.
        neighbours: storages whose manual addresses overlap.
        lost_to: name of the storage that overwrote elements of this one.
        row: bytes of one partition (on chip), or of everything (HBM).
        written: True when every element was written, False when none was, else one flag an element.
        serial: number of the allocation.
        shared: whether two programs see it.
        writers: of a shared storage, who wrote each element since the last barrier; see ``races``.
    """

    __slots__ = (
        "__weakref__",
        "array",
        "at",
        "claim",
        "dtype",
        "first",
        "lost_to",
        "name",
        "neighbours",
        "numel",
        "place",
        "raw",
        "region",
        "row",
        "serial",
        "shape",
        "shared",
        "space",
        "writers",
        "written",
    )

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, region: MemoryRegion, name: str, array: Any = None
    ) -> None:
        self.space: Space | None = None
        self.claim: Any = None
        self.shape = shape
        self.dtype = dtype
        self.region = region
        self.place = _PLACES[region]
        self.name = name
        self.numel = math.prod(shape)
        self.written: bool | NDArray[np.bool_] = array is not None
        self.array: NDArray[Any] = np.full(shape, dtype.fill, dtype.numpy) if array is None else array
        self.raw = self.array.reshape(-1).view(np.uint8)
        self.row = self.numel * dtype.itemsize // (shape[0] if self.place != "hbm" and shape[0] else 1)
        self.shared = False
        self.writers: NDArray[np.int8] | None = None
        self.first = 0
        self.at = 0
        self.neighbours: list[weakref.ref[Storage]] = []
        self.lost_to = ""
        self.serial = next(_serials)

    def __del__(self) -> None:
        if self.space is not None:
            self.space.give(self.claim)

    def flags(self) -> NDArray[np.bool_]:
        """One flag an element, made now if all were alike."""
        if type(self.written) is bool:
            self.written = np.full(self.numel, self.written, np.bool_)
        return self.written
