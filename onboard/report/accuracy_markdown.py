"""The Markdown view of a validation, for a pull request."""

from __future__ import annotations

from onboard.report import accuracy_rows as told
from onboard.report.markdown import escape, table
from vllm_neuron.accuracy.results import LevelResult, Place, Report

# Rows of passed blocks say little: what did not pass is listed, and one line a kind says the rest.
MOST = 40


def render(report: Report) -> str:
    """The whole document."""
    parts = [f"# Accuracy of {escape(report.model)}", f"**{escape(report.verdict)}**"]
    if report.place is not None:
        parts.append(_place(report.place))
    parts.append(table(("", "run"), told.facts(report)))
    parts += _list(report.notes)
    for level in report.levels:
        parts += _level(level)
    return "\n\n".join(parts) + "\n"


def _level(level: LevelResult) -> list[str]:
    parts = [f"## {told.title(level)}: {level.outcome}", f"{escape(level.verdict)} ({level.seconds:.1f} s)"]
    if level.place is not None:
        parts.append(_place(level.place))
    parts += _list(level.notes)
    if level.not_covered:
        parts.append(f"Not covered: {escape(', '.join(level.not_covered))}.")
    if level.tasks:
        parts.append(table(told.TASK_HEAD, (told.task_cells(each) for each in level.tasks)))
        parts += _list([f"{each.task}: {note}" for each in level.tasks for note in each.notes])
    if level.prompts:
        parts.append(table(told.PROMPT_HEAD, (told.prompt_cells(each) for each in level.prompts)))
        parts += _list(told.shared([(each.name, note) for each in level.prompts for note in each.notes]))
    if level.blocks:
        failed = [each for each in level.blocks if not each.passed]
        parts.append(f"{len(level.blocks) - len(failed)} of {len(level.blocks)} comparisons of blocks passed.")
        if failed:
            parts.append(table(told.BLOCK_HEAD, (told.block_cells(each) for each in failed[:MOST])))
        if len(failed) > MOST:
            parts.append(f"And {len(failed) - MOST} more.")
    return parts


def _place(place: Place) -> str:
    return (
        f"**{escape(place.words())}**, {place.kind}: {escape(place.ours)} against {escape(place.theirs)}. "
        f"{escape(place.evidence)}"
    )


def _list(lines: tuple[str, ...] | list[str]) -> list[str]:
    return ["\n".join(f"- {escape(line)}" for line in dict.fromkeys(lines))] if lines else []
