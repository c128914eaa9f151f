"""A kernel call as a Chrome trace: one track an engine, one event an instruction.

**An estimate, not a measurement.** Each engine runs its instructions in the program's order. An instruction starts when
its engine is free and the instructions that wrote what it reads have ended; one that overwrites a tile also waits for
those that used it (whole tensors count, not the parts of them). Matmuls on different row tiles of the tensor engine
overlap where the stand-in counts that they do. All DMA of a core shares one track at the documented
bandwidth. Durations come from counted cycles and bytes and the documented clocks and bandwidth of a chip. Latency of
DMA and semaphores, conflicts of memory banks and the reuse of addresses are left out. The cores of a logical core wait
for each other in ``core_barrier``, which all engines pass together, and in ``sendrecv``. Open the file in Perfetto
(ui.perfetto.dev) or chrome://tracing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_neuron.errors import ConfigError
from vllm_neuron.nki.cost import Chip
from vllm_neuron.nki.standin.counts import Counts, Event

TRACKS = ("dma", "tensor", "vector", "scalar", "gpsimd", "sync")
# Instructions that wait for the other program.
MEETINGS = ("core_barrier", "sendrecv")
NOTICE = "Estimated from counts of the NKI stand-in: not AWS's simulator, not a measurement."


def schedule(counts: Counts, on: Chip) -> list[tuple[Event, float, float]]:
    """The instructions of a call with estimated start and duration, in seconds from the call's start.

    Args:
        counts: with events: from ``standin.counting(events=True)``.
        on: chip whose clocks and bandwidth apply.

    Raises:
        ConfigError: a call whose instructions weren't kept.
    """
    if not counts.events and any(counts.instructions.values()):
        raise ConfigError("trace", counts.kernel, "counts with events", "Collect in standin.counting(events=True).")
    programs = [_Program(counts, program, on) for program in range(counts.programs)]
    while any(program.left for program in programs):
        ready = [program.until_meeting() for program in programs if program.left]
        meeting = max(ready)
        for program in programs:
            program.meet(meeting)
    return [placed for program in programs for placed in program.placed]


def scheduled_seconds(counts: Counts, on: Chip) -> float:
    """Estimated time of a call: when its last instruction ends."""
    return max((start + duration for _, start, duration in schedule(counts, on)), default=0.0)


class _Program:
    """The schedule of one program.

    Attributes:
        left: instructions to place, the next one last.
        placed: instructions with start and duration.
    """

    def __init__(self, counts: Counts, program: int, on: Chip) -> None:
        self.left = [event for event in reversed(counts.events) if event.program == program]
        self.placed: list[tuple[Event, float, float]] = []
        self._alone = counts.programs == 1
        self._on = on
        self._free = dict.fromkeys(TRACKS, 0.0)
        self._written: dict[int, float] = {}
        self._used: dict[int, float] = {}

    def until_meeting(self) -> float:
        """Place instructions up to the next one that waits for the other program; returns when that one is ready."""
        while self.left and (self._alone or self.left[-1].name not in MEETINGS):
            event = self.left.pop()
            self._place(event, self._start(event))
        return self._start(self.left[-1]) if self.left else 0.0

    def meet(self, at: float) -> None:
        """Place the instruction that waited, not before ``at``."""
        if self.left:
            event = self.left.pop()
            self._place(event, max(at, self._start(event)))

    def _start(self, event: Event) -> float:
        if event.engine == "sync":
            return max(self._free.values())
        start = self._free[event.engine]
        if event.shared:
            start -= event.shared / self._on.clock_hz[event.engine]
        for storage in event.reads:
            start = max(start, self._written.get(storage, 0.0))
        # Writes to HBM go to parts of large tensors: they don't wait for each other.
        if not event.direction.endswith("hbm"):
            for storage in event.writes:
                start = max(start, self._used.get(storage, 0.0))
        return start

    def _place(self, event: Event, start: float) -> None:
        duration = _seconds(event, self._on)
        end = start + duration
        if event.engine == "sync":
            self._free = dict.fromkeys(TRACKS, end)
        self._free[event.engine] = max(end, self._free[event.engine])
        for storage in event.reads:
            self._used[storage] = max(self._used.get(storage, 0.0), end)
        for storage in event.writes:
            self._written[storage] = max(self._written.get(storage, 0.0), end)
        self.placed.append((event, start, duration))


def _seconds(event: Event, on: Chip) -> float:
    if event.engine == "dma":
        crossings = 2 if event.direction == "hbm>hbm" else 1
        return crossings * event.cost / on.hbm_bytes_per_second
    clock = on.clock_hz.get(event.engine)
    return event.cost / clock if clock else 0.0


def trace(calls: Iterable[Counts], on: Chip) -> dict[str, Any]:
    """Kernel calls, one after the other, as the JSON object that Chrome and Perfetto read (times in microseconds).

    Raises:
        ConfigError: see ``schedule``.
    """
    events: list[dict[str, Any]] = []
    offset = 0.0
    programs: set[int] = set()
    for number, counts in enumerate(calls):
        end = offset
        programs |= set(range(counts.programs))
        for event, start, duration in schedule(counts, on):
            at = offset + 1e6 * start
            end = max(end, at + 1e6 * duration)
            events.append(
                {
                    "name": event.name,
                    "cat": counts.kernel,
                    "ph": "X",
                    "pid": event.program,
                    "tid": TRACKS.index(event.engine),
                    "ts": at,
                    "dur": 1e6 * duration,
                    "args": _details(event, counts, number),
                }
            )
        offset = end
    names = [name for program in sorted(programs) for name in _names(program)]
    return {
        "traceEvents": names + events,
        "displayTimeUnit": "ns",
        "otherData": {"notice": NOTICE, "chip": on.name, "source": on.source},
    }


def write_trace(path: Path, calls: Iterable[Counts], on: Chip) -> None:
    """Write a trace to a file.

    Raises:
        ConfigError: see ``schedule``.
    """
    path.write_text(json.dumps(trace(calls, on)), encoding="utf-8")


def _details(event: Event, counts: Counts, number: int) -> dict[str, Any]:
    unit = "bytes" if event.engine == "dma" else "cycles"
    details: dict[str, Any] = {"kernel": counts.kernel, "call": number, unit: event.cost, "estimated": True}
    if event.direction:
        details["direction"] = event.direction
    return details


def _names(program: int) -> list[dict[str, Any]]:
    """Names and order of a program's tracks."""
    found = [_meta("process_name", program, 0, {"name": f"core {program} (estimated)"})]
    for track, name in enumerate(TRACKS):
        found.append(_meta("thread_name", program, track, {"name": name}))
        found.append(_meta("thread_sort_index", program, track, {"sort_index": track}))
    return found


def _meta(name: str, program: int, track: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": program, "tid": track, "args": args}
