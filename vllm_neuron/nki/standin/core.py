"""The running program: counters, memory, place in a logical core; and errors that name the kernel's line."""

from __future__ import annotations

import difflib
import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin.counts import Counts, Event
from vllm_neuron.nki.standin.memory import PARTITIONS, PSUM_BYTES, SBUF_BYTES, Space

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

STANDIN = "(Said by the NKI stand-in, which is not AWS's simulator.)"


class Core:
    """One program of a kernel call.

    Attributes:
        kernel: the kernel's name.
        program: index of this program, 0 or 1.
        programs: number of programs.
        ndim: 0 when the kernel was called without a grid, else 1.
        counts: what was done so far.
        sbuf, psum: memory in use.
        scalar_registers, vector_registers: the engines' accumulators, one a partition.
        was_reset: the engines whose accumulators hold something.
        launch: what the programs of the call share.
        events: the instructions one by one, or None.
        reads, writes: storages that the instruction at hand touched, when events are kept.
        tiles: row tiles of the tensor engine that the matmuls before this instruction use; see ``isa.row_tiles``.
    """

    __slots__ = (
        "counts",
        "events",
        "kernel",
        "launch",
        "ndim",
        "program",
        "programs",
        "psum",
        "reads",
        "sbuf",
        "scalar_registers",
        "tiles",
        "vector_registers",
        "was_reset",
        "writes",
    )

    def __init__(self, kernel: str, program: int, programs: int, ndim: int, launch: Any, events: bool) -> None:
        self.kernel = kernel
        self.program = program
        self.programs = programs
        self.ndim = ndim
        self.launch = launch
        self.counts = Counts(kernel, programs)
        self.events: list[Event] | None = self.counts.events if events else None
        self.reads: list[int] = []
        self.writes: list[int] = []
        self.tiles: Any = None
        self.sbuf = Space(SBUF_BYTES)
        self.psum = Space(PSUM_BYTES, banked=True)
        self.scalar_registers: NDArray[np.float32] = np.full(PARTITIONS, np.nan, np.float32)
        self.vector_registers: NDArray[np.float32] = np.full(PARTITIONS, np.nan, np.float32)
        self.was_reset: set[str] = set()

    def tick(self, engine: str, name: str, cycles: float, shared: float = 0.0) -> None:
        """Count one instruction of an engine, without the cycles that it shares with those before it."""
        counts = self.counts
        counts.instructions[engine] += 1
        counts.cycles[engine] += cycles - shared
        if engine == "tensor":
            self.tiles = None
        if self.events is not None:
            self.events.append(Event(engine, name, cycles, self.program, "", *self._touched(), shared))

    def move(self, name: str, source: str, target: str, size: int, pieces: int = 1) -> None:
        """Count one DMA of ``size`` bytes between buffers (``hbm`` or ``sbuf``) in contiguous pieces."""
        way = f"{source}>{target}"
        counts = self.counts
        counts.instructions["dma"] += 1
        counts.dma_pieces += pieces
        counts.dma_bytes[way] = counts.dma_bytes.get(way, 0) + size
        if self.events is not None:
            self.events.append(Event("dma", name, size, self.program, way, *self._touched()))

    def _touched(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The storages that the instruction read and wrote, and a fresh start for the next one."""
        touched = tuple(self.reads), tuple(self.writes)
        self.reads.clear()
        self.writes.clear()
        return touched

    def wait(self, name: str) -> None:
        """Count one synchronisation."""
        self.counts.instructions["sync"] += 1
        self.tiles = None
        if self.events is not None:
            self.events.append(Event("sync", name, 0.0, self.program))


class _Local(threading.local):
    core: Core | None = None


local = _Local()


def current(name: str) -> Core:
    """The program that runs in this thread.

    Raises:
        KernelError: outside a kernel.
    """
    core = local.core
    if core is None:
        fail(name, None, "a call inside a kernel", "Decorate the function with @nki.jit and call it with arrays.")
    return core


def fail(argument: str, value: Any, limit: str, action: str = "") -> NoReturn:
    """Raise the error of a primitive, with the kernel and the line in it that made the call."""
    core = local.core
    hint = f"{action} {STANDIN}" if action else STANDIN
    raise KernelError(core.kernel if core else "(no kernel)", argument, value, limit, kernel_line(), hint)


def missing(name: str, module: str, known: Iterable[str]) -> str:
    """The message of an AttributeError for a name that a module of the stand-in hasn't."""
    if "mx" in name.split("_"):
        return f"{module}.{name}: the MX types of trn3 are not part of the stand-in. {STANDIN}"
    public = [other for other in known if not other.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{module} has no {name!r} here.{hint} {STANDIN}"


def kernel_line() -> str:
    """``file:line`` of the innermost frame that isn't the stand-in's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "(unknown line)"


def line_of(traceback: TracebackType | None) -> str:
    """``file:line`` of the innermost frame of a traceback that isn't the stand-in's own; empty without one."""
    found = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(HERE):
            found = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
