"""The rows of a kernel report, put together for people: one line for an operation where all sizes fare alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onboard.checks.kernels import KernelReport, Row

TITLES = {
    "prefill": "prefill: tokens of new requests",
    "extend": "extend: tokens after cached ones",
    "decode": "decode: one token of each row",
}


@dataclass(frozen=True)
class Line:
    """One operation in some sizes of a phase.

    Attributes:
        phase, operation: which.
        sizes: ``16-2048``, or the sizes one by one where others are between.
        calls: in one step, of the largest size.
        choice: the kernel, ``compiler``, or ``torch`` where none takes it.
        why: of what is not a kernel, or of kernels that were passed over.
        refused: no kernel takes it, and that is not meant so.
    """

    phase: str
    operation: str
    sizes: str
    calls: int
    choice: str
    why: str
    refused: bool


def lines(report: KernelReport) -> list[Line]:
    """In the order of a step, the phases one after the other."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    sizes: dict[str, list[int]] = {}
    for row in report.rows:
        phase = row.shape.phase.value
        choice = row.kernel or ("compiler" if row.compiler else "torch")
        refusals = tuple((name, said.field, said.limit) for name, said in row.answers.items() if not said.ok)
        grouped.setdefault((phase, row.call.operation, choice, refusals), []).append(row)
        if row.shape.size not in sizes.setdefault(phase, []):
            sizes[phase].append(row.shape.size)
    found = [_line(rows, choice, sizes[phase]) for (phase, _, choice, _), rows in grouped.items()]
    order = list(TITLES)
    return sorted(found, key=lambda line: order.index(line.phase))


def _line(rows: list[Row], choice: str, all_sizes: list[int]) -> Line:
    of = sorted({row.shape.size for row in rows})
    largest = [row for row in rows if row.shape.size == of[-1]]
    return Line(
        rows[0].shape.phase.value,
        rows[0].call.operation,
        _ranges(of, sorted(all_sizes)),
        sum(row.count for row in largest),
        choice,
        _why(rows),
        rows[0].refused,
    )


def _why(rows: list[Row]) -> str:
    """The refusals of rows that differ in values alone."""
    parts = []
    for name, said in rows[0].answers.items():
        if not said.ok:
            values = list(dict.fromkeys(str(row.answers[name].value) for row in rows))
            shown = values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
            parts.append(f"{name}: {said.field} is {shown}, it takes {said.limit}")
    return "; ".join(parts) or ("there is no NKI kernel for it" if rows[0].refused else "")


def _ranges(some: list[int], every: list[int]) -> str:
    """Runs of neighbours among the buckets."""
    runs: list[list[int]] = []
    for size in some:
        if runs and every.index(size) == every.index(runs[-1][-1]) + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def head(report: KernelReport) -> list[str]:
    """What was looked at, in a few lines."""
    limits = report.limits
    return [
        f"{report.architecture}, package {report.package}",
        f"TP {limits['tp']}, {limits['dtype']}, up to {limits['max-model-len']} tokens a sequence, "
        f"{limits['max-num-batched-tokens']} a step, {limits['max-num-seqs']} rows, blocks of {limits['block-size']}",
        f"logical cores of {report.lnc} NeuronCore{'s' if report.lnc > 1 else ''}; "
        f"on this machine kernels run on the {report.route}",
        *report.notes,
        *_missing(report),
    ]


def _missing(report: KernelReport) -> list[str]:
    """One line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in report.missing.items():
        reasons.setdefault(reason, []).append(name)
    return [f"not tried: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def verdict(report: KernelReport) -> str:
    """How many operations fall back, in one line."""
    back = sorted({row.call.operation for row in report.rows if row.refused})
    if not back:
        return "Every operation that is meant to have a kernel takes one, in every shape."
    return f"Plain torch in some shapes: {', '.join(back)}. VLLM_NEURON_KERNELS=require would refuse them."
