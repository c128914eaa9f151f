"""What a kernel call did: instructions, engine cycles, DMA bytes, matmul cycles, peak memory.

The cycle figures follow the public NKI documentation's estimates. An instruction of the vector, scalar or GpSimd engine
takes one cycle an element of a partition; the vector engine does two or four elements of 16-bit tiles a cycle where the
Trainium2 guide says so. A matmul streams its moving rows through the array: one a cycle for 16-bit and 8-bit types (a
pair with ``perf_mode=double_row``), four cycles a row for fp32 (``FP32_PASSES``, two for a transpose). No instruction
takes less than 64 cycles. Matmuls that follow each other on different row tiles of the array run at the same time:
see ``isa.row_tiles``. These are estimates: queues, semaphores and the memory system are not simulated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
FIXED_CYCLES = 64
FP32_PASSES = 4
FP32_TRANSPOSE_PASSES = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction, for the trace: engine, name, its cost, and which program of the logical core ran it.

    ``cost`` is in cycles of the engine, or in bytes for ``dma`` (``direction`` says which way). ``reads`` and
    ``writes`` are serial numbers of storages. ``shared``: cycles of the cost that pass while the instructions before
    it run on other row tiles of the tensor engine.
    """

    engine: str
    name: str
    cost: float
    program: int
    direction: str = ""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    shared: float = 0.0


@dataclass
class Counts:
    """Counted cost of one kernel call, summed over the programs of a logical core (peaks: the larger one).

    Attributes:
        kernel: the kernel's name.
        programs: 1, or 2 with lnc=2.
        instructions: engine (``tensor``, ``vector``, ``scalar``, ``gpsimd``, ``dma``, ``sync``) -> instructions.
        cycles: engine -> estimated cycles; ``dma`` is absent (see the bytes).
        dma_bytes: direction (``hbm>sbuf``, ``sbuf>hbm``, ``hbm>hbm``, ``sbuf>sbuf``) -> bytes moved, counted
            in the element type of the end in HBM.
        dma_pieces: contiguous runs that the DMAs moved (a partition is a run of its own); bytes / pieces is the size of
            a descriptor's element, and small ones waste bandwidth.
        matmul_cycles: cycles of the tensor engine spent on products, at the tile rate; those of row tiles that run
            at the same time count once.
        transpose_cycles: cycles of the tensor engine spent on transposes.
        peak_sbuf: bytes a partition.
        peak_psum: bytes a partition.
        hbm_bytes: bytes of the tensors that the kernel allocated in HBM.
        events: the instructions one by one, when a trace was asked for.
    """

    kernel: str
    programs: int = 1
    instructions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))
    cycles: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ENGINES[:4], 0.0))
    dma_bytes: dict[str, int] = field(default_factory=dict)
    dma_pieces: int = 0
    matmul_cycles: float = 0.0
    transpose_cycles: float = 0.0
    peak_sbuf: int = 0
    peak_psum: int = 0
    hbm_bytes: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def piece_bytes(self) -> float:
        """Mean bytes of a contiguous DMA run; 0 without DMA."""
        return sum(self.dma_bytes.values()) / self.dma_pieces if self.dma_pieces else 0.0

    @property
    def hbm_traffic(self) -> int:
        """Bytes that cross the HBM interface; a copy inside HBM crosses it twice."""
        return sum(n * (2 if way == "hbm>hbm" else 0 if way == "sbuf>sbuf" else 1) for way, n in self.dma_bytes.items())

    def add(self, other: Counts) -> None:
        """Add what another program of the same call did."""
        for engine, n in other.instructions.items():
            self.instructions[engine] += n
        for engine, cycles in other.cycles.items():
            self.cycles[engine] += cycles
        for way, n in other.dma_bytes.items():
            self.dma_bytes[way] = self.dma_bytes.get(way, 0) + n
        self.dma_pieces += other.dma_pieces
        self.matmul_cycles += other.matmul_cycles
        self.transpose_cycles += other.transpose_cycles
        self.peak_sbuf = max(self.peak_sbuf, other.peak_sbuf)
        self.peak_psum = max(self.peak_psum, other.peak_psum)
        self.hbm_bytes += other.hbm_bytes
        self.events += other.events


class Collected:
    """The counts of the kernel calls inside ``counting()``.

    Attributes:
        calls: every call's ``Counts``, in order.
        events: whether instructions are kept one by one.
    """

    def __init__(self, events: bool) -> None:
        self.calls: list[Counts] = []
        self.events = events

    def by_kernel(self) -> dict[str, list[Counts]]:
        """Kernel name -> its calls, in order."""
        found: dict[str, list[Counts]] = {}
        for counts in self.calls:
            found.setdefault(counts.kernel, []).append(counts)
        return found


_lock = threading.Lock()
_collecting: list[Collected] = []
_last: list[Counts] = []


@contextlib.contextmanager
def counting(events: bool = False) -> Iterator[Collected]:
    """Collect the counts of every kernel call inside, of all threads.

    Args:
        events: also keep each instruction, for ``vllm_neuron.nki.trace``.
    """
    collected = Collected(events)
    with _lock:
        _collecting.append(collected)
    try:
        yield collected
    finally:
        with _lock:
            _collecting.remove(collected)


def wants_events() -> bool:
    """Whether somebody asked for single instructions."""
    return any(collected.events for collected in _collecting)


def publish(counts: Counts) -> None:
    """Hand the counts of a finished call to whoever collects."""
    with _lock:
        _last[:] = [counts]
        for collected in _collecting:
            collected.calls.append(counts)


def last_counts() -> Counts | None:
    """Counts of the kernel call that finished last in this process; None before the first."""
    return _last[0] if _last else None
