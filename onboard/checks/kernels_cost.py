"""What the kernels of a report cost: each run once on the stand-in, its counts beside the roofline of trn2 and trn3."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vllm_neuron.functional as NF
from onboard.checks.kernels import Call, KernelReport, Row
from vllm_neuron.errors import UnsupportedError
from vllm_neuron.nki import api
from vllm_neuron.nki.bounds import Bound, bound
from vllm_neuron.nki.cost import CHIPS, TRN2, Cost
from vllm_neuron.nki.cost import cost as on_roofline
from vllm_neuron.nki.execute import watching
from vllm_neuron.nki.standin import Counts, counting
from vllm_neuron.nki.trace import write_trace

# What one run on the stand-in may compute and hold: some ten seconds, a few GB.
MOST_PRODUCTS = 1e11
MOST_BYTES = 2.5e9
ARRAY = 128 * 128
SAMPLE = 1 << 18


@dataclass(frozen=True)
class RowCost:
    """One operation, counted.

    Attributes:
        runs: its kernels on each chip: chip -> one :class:`vllm_neuron.nki.cost.Cost` a kernel.
    """

    runs: dict[str, tuple[Cost, ...]]

    def counted(self, chip: str) -> float:
        """Seconds by the counts."""
        return sum(run.counted.total for run in self.runs[chip])

    def least(self, chip: str) -> float | None:
        """Seconds by the roofline; None where the least work of a kernel is not known."""
        found = [run.least.total for run in self.runs[chip] if run.least is not None]
        return sum(found) if len(found) == len(self.runs[chip]) else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {chip: [run.as_dict() for run in runs] for chip, runs in self.runs.items()}


def measure(report: KernelReport, trace: Path | None = None) -> None:
    """Run the kernels of the largest size of each phase that the stand-in can run in seconds, and note their cost.

    Args:
        report: its rows get a ``cost``; its notes say what was reduced or left out.
        trace: a file for a Chrome trace of the runs, estimated on trn2.

    Raises:
        UnsupportedError: the real ``nki`` is installed, whose simulator counts nothing.
    """
    if api.IS_REAL:
        raise UnsupportedError(
            "--cost", "the real nki", "the stand-in, which counts", "Run it where nki is not installed."
        )
    calls: list[Counts] = []
    done: dict[Call, Row] = {}
    for row in _largest(report):
        if row.call in done:
            row.cost = done[row.call].cost
            continue
        calls += _measure(row, report.examples[row.call], trace is not None)
        done[row.call] = row
    if trace is not None:
        write_trace(trace, calls, TRN2)


def _largest(report: KernelReport) -> Iterable[Row]:
    """For each operation and phase, the calls in the largest size that is small enough."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        if row.kernel is not None:
            groups.setdefault((row.shape.phase.value, row.call.operation), []).append(row)
    for (phase, operation), rows in groups.items():
        sizes = sorted({row.shape.size for row in rows}, reverse=True)
        fits = (
            size
            for size in sizes
            if all(_small(row, report.examples[row.call]) for row in rows if row.shape.size == size)
        )
        chosen = next(fits, None)
        if chosen is None:
            report.notes.append(f"cost of {operation} in {phase}: not counted, too large for the stand-in in any size")
            continue
        if chosen != sizes[0]:
            report.notes.append(f"cost of {operation} in {phase}: counted with {chosen} in place of {sizes[0]}")
        yield from (row for row in rows if row.shape.size == chosen)


def _small(row: Row, example: Mapping[str, Any]) -> bool:
    held = sum(value.nbytes for value in example.values() if isinstance(value, Tensor))
    products = sum(_products(least, example) for _, least in row.runs)
    return held <= MOST_BYTES and products <= MOST_PRODUCTS


def _products(least: Bound | None, example: Mapping[str, Any]) -> float:
    if least is not None:
        return least.tensor_cycles * ARRAY
    tensors = [value for value in example.values() if isinstance(value, Tensor)]
    return float(tensors[0].shape[0] * sum(t.numel() for t in tensors if t.ndim == 3))


def _measure(row: Row, example: Mapping[str, Any], events: bool) -> list[Counts]:
    generator = torch.Generator().manual_seed(0)
    arguments = {name: _real(name, value, example, generator) for name, value in example.items()}
    bounds: list[Bound | None] = []
    with (
        torch.no_grad(),
        NF.use_kernels("require"),
        counting(events=events) as collected,
        watching(lambda name, grid, given: bounds.append(bound(name, given))),
    ):
        NF.get(row.call.operation)(**arguments)
    row.cost = RowCost(
        {
            name: tuple(on_roofline(run, least, chip) for run, least in zip(collected.calls, bounds, strict=True))
            for name, chip in CHIPS.items()
        }
    )
    return collected.calls


def _real(name: str, value: Any, example: Mapping[str, Any], generator: torch.Generator) -> Any:
    """A tensor with memory in place of a fake one, with values that the operation can have met."""
    if not isinstance(value, Tensor):
        return value
    shape, dtype = tuple(value.shape), value.dtype
    numel = math.prod(shape)
    if dtype is torch.bool:
        return _visible(shape, example)
    if dtype.is_floating_point:
        some = (torch.randn(min(numel, SAMPLE), generator=generator) * 0.05).to(dtype)
        return some.repeat(-(-numel // max(1, some.numel())))[:numel].view(shape)
    most = {"blocks_BM": _rows(example, "pages"), "experts_TK": _rows(example, "up_EFH")}.get(name, numel)
    return (torch.arange(numel, dtype=dtype) % max(1, most)).view(shape)


def _visible(shape: tuple[int, ...], example: Mapping[str, Any]) -> Tensor:
    """A mask that keeps what the call promises of causality and window."""
    seen, window = torch.ones(shape, dtype=torch.bool), example.get("window")
    before = shape[-1] - shape[-2]
    if example.get("causal"):
        seen = seen.tril(before)
    if window is not None:
        paged = "blocks_BM" in example
        seen = seen.triu(0).tril(window - 1) if paged else seen.triu(before - window + 1)
    return seen


def _rows(example: Mapping[str, Any], name: str) -> int:
    tensor = example.get(name)
    return tensor.shape[0] if isinstance(tensor, Tensor) else 1
