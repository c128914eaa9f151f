"""A kernel call as a Chrome trace: one track an engine, one event an instruction.

**An estimate, not a measurement.** Each engine runs its instructions in the program's order. An instruction starts when
its engine is free and the instructions that wrote what it reads have ended; one that overwrites a tile also waits for
those that used it (whole tensors count, not the parts of them). All DMA of a core shares one track at the documented
bandwidth. Durations come from counted cycles and bytes and the documented clocks and bandwidth of a chip. Latency of
DMA and semaphores, conflicts of memory banks, the reuse of addresses and waiting for the other core are left out. Open
the file in Perfetto (ui.perfetto.dev) or chrome://tracing.
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
    placed: list[tuple[Event, float, float]] = []
    for program in range(counts.programs):
        placed += _program([event for event in counts.events if event.program == program], on)
    return placed


def scheduled_seconds(counts: Counts, on: Chip) -> float:
    """Estimated time of a call: when its last instruction ends."""
    return max((start + duration for _, start, duration in schedule(counts, on)), default=0.0)


def _program(events: Iterable[Event], on: Chip) -> list[tuple[Event, float, float]]:
    free = dict.fromkeys(TRACKS, 0.0)
    written: dict[int, float] = {}
    used: dict[int, float] = {}
    placed = []
    for event in events:
        start = free[event.engine]
        for storage in event.reads:
            start = max(start, written.get(storage, 0.0))
        # Writes to HBM go to parts of large tensors: they don't wait for each other.
        if not event.direction.endswith("hbm"):
            for storage in event.writes:
                start = max(start, used.get(storage, 0.0))
        duration = _seconds(event, on)
        end = start + duration
        free[event.engine] = end
        for storage in event.reads:
            used[storage] = max(used.get(storage, 0.0), end)
        for storage in event.writes:
            written[storage] = max(written.get(storage, 0.0), end)
        placed.append((event, start, duration))
    return placed


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
