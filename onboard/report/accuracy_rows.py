"""A validation as rows and sentences: what its terminal, Markdown and HTML views share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from vllm_neuron.accuracy.results import (
    BlockResult,
    Candidate,
    LevelResult,
    PromptResult,
    Report,
    TaskResult,
    ThreeWay,
    TokenRow,
)

TITLES = {1: "tasks", 2: "tokens", 3: "modules"}
TASK_HEAD = ("task", "metric", "target", "reference", "items", "same answers", "verdict")
PROMPT_HEAD = ("prompt", "tokens", "decoded", "top-1", "near ties", "worst KL", "RMS ratio", "BC", "KV BC", "verdict")
BLOCK_HEAD = ("layer", "block", "dtype", "phase", "RMS", "HF bf16 RMS", "ratio", "BC", "verdict")


def title(level: LevelResult) -> str:
    """``Level 2, tokens``."""
    return f"Level {level.level}, {TITLES.get(level.level, '')}"


def summary(report: Report) -> str:
    """One sentence for the end of the terminal view."""
    place = report.place.words() if report.place and not report.passed else ""
    told = f"; {place}" if place and place not in report.verdict else ""
    return f"{report.model}: {report.verdict}{told}"


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; ``-`` for none."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def share(value: float | None) -> str:
    """``97.9 %``."""
    return "-" if value is None else f"{value:.1%}".replace("%", " %")


def task_cells(result: TaskResult) -> tuple[str, ...]:
    """In the order of :data:`TASK_HEAD`."""
    error = f" ± {result.error:.3f}" if result.error is not None else ""
    score = "-" if result.score is None else f"{result.score:.3f}{error}"
    reference = "-" if result.reference is None else f"{result.reference:.3f}"
    cells = (result.task, result.metric, score, reference, str(result.items), share(result.agreement))
    return (*cells, result.verdict)


def prompt_cells(result: PromptResult) -> tuple[str, ...]:
    """In the order of :data:`PROMPT_HEAD`."""
    worst = max((row.kl for row in result.rows), default=None)
    return (
        result.name,
        str(len(result.ids)),
        str(result.steps),
        share(result.top1_agreement) if result.rows else "-",
        str(result.near_ties),
        number(worst),
        number(result.logits.rms_ratio) if result.logits else "-",
        number(result.logits.bc, 4) if result.logits else "-",
        number(min((t.bc for layer in result.layers for t in layer.tensors), default=None), 4),
        result.verdict,
    )


def block_cells(result: BlockResult) -> tuple[str, ...]:
    """In the order of :data:`BLOCK_HEAD`."""
    layer = "-" if result.layer is None else str(result.layer)
    return (layer, result.block, result.dtype, result.phase, *comparison_cells(result.comparison), result.verdict)


def comparison_cells(comparison: ThreeWay | None) -> tuple[str, str, str, str]:
    """RMS errors of target and baseline, their ratio, and the Bhattacharyya coefficient."""
    if comparison is None:
        return ("-", "-", "-", "-")
    target = comparison.target.rms if comparison.target else None
    baseline = comparison.baseline.rms if comparison.baseline else None
    return (number(target), number(baseline), number(comparison.rms_ratio), number(comparison.bc, 4))


def telling(prompt: PromptResult, most: int) -> list[TokenRow]:
    """Rows worth a table, in order: what fails, near ties, then the largest divergences; at most ``most``."""

    def weight(row: TokenRow) -> tuple[int, float]:
        return (2 if not row.passed else 1 if row.near_tie else 0, row.kl if math.isfinite(row.kl) else math.inf)

    chosen = sorted(prompt.rows, key=weight, reverse=True)[:most]
    return sorted(chosen, key=lambda row: row.position)


def candidates(tops: Sequence[Candidate]) -> str:
    """``"Paris" 17.25, " Rome" 14.1``."""
    return ", ".join(f"{each.text!r} {each.logit:.4g}" if each.text else f"{each.id} {each.logit:.4g}" for each in tops)


def failures(level: LevelResult) -> list[str]:
    """``name: verdict`` of all that did not pass in a level."""
    parts: list[tuple[str, str, bool]] = [(t.task, t.verdict, t.passed) for t in level.tasks]
    parts += [(p.name, p.verdict, p.passed) for p in level.prompts]
    parts += [(_where(b), b.verdict, b.passed) for b in level.blocks]
    return [f"{name}: {verdict}" for name, verdict, passed in parts if not passed]


def _where(block: BlockResult) -> str:
    layer = "" if block.layer is None else f"layer {block.layer} "
    return f"{layer}{block.block} ({block.dtype}, {block.phase})"


def shared(notes: Iterable[tuple[str, str]]) -> list[str]:
    """``names: note``, one line for all that have the same."""
    names: dict[str, list[str]] = {}
    for name, note in notes:
        names.setdefault(note, []).append(name)
    return [f"{', '.join(each)}: {note}" for note, each in names.items()]


def facts(report: Report) -> list[tuple[str, str]]:
    """What was run, as names and values."""
    rows = [
        ("model", report.model),
        ("package", report.package),
        ("target", report.target),
        ("reference", report.reference),
        ("when", report.created),
        ("time", f"{report.seconds:.0f} s, peak memory {report.peak_gib:.1f} GiB"),
    ]
    rows.append(("versions", ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))))
    return [(name, value) for name, value in rows if value]
