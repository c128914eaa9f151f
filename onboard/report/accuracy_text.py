"""The terminal view of a validation."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding

from onboard.report import accuracy_rows as told
from onboard.report.terminal import plain
from vllm_neuron.accuracy.results import LevelResult, Place, PromptResult, Report

STYLES = {"pass": "green", "not run": "yellow"}
# Lines of what did not pass that one level may fill.
MOST = 12


def show(report: Report, console: Console) -> None:
    """Print the levels, then what was found, then the verdict in one line."""
    for name, value in told.facts(report):
        console.print(plain(f"{name:<10} {value}", "dim"))
    for level in report.levels:
        console.print()
        _level(level, console)
    if report.notes:
        console.print()
    for note in report.notes:
        console.print(plain(note, "dim"))
    console.print()
    if report.place is not None:
        _place(report.place, console)
    console.print(plain(told.summary(report), f"bold {STYLES.get(report.outcome, 'red')}"))


def _level(level: LevelResult, console: Console) -> None:
    console.print(plain(f"{told.title(level)}: {level.verdict} ({level.seconds:.1f} s)", _style(level.outcome)))
    lines = [f"{each.task}: {each.verdict}" for each in level.tasks]
    lines += [f"{each.name}: {_prompt(each)}" for each in level.prompts]
    failed = told.failures(level)
    if level.blocks:
        lines.append(f"{sum(each.passed for each in level.blocks)} of {len(level.blocks)} comparisons of blocks passed")
        lines += failed[:MOST]
        if len(failed) > MOST:
            lines.append(f"and {len(failed) - MOST} more")
    if level.not_covered:
        lines.append(f"not covered: {', '.join(level.not_covered)}")
    for line in lines:
        console.print(Padding(plain(line), (0, 0, 0, 2), expand=False))
    for note in dict.fromkeys(level.notes):
        console.print(Padding(plain(note, "dim"), (0, 0, 0, 2), expand=False))


def _prompt(prompt: PromptResult) -> str:
    if not prompt.rows:
        return prompt.verdict
    found = f"{len(prompt.rows)} positions, top-1 {told.share(prompt.top1_agreement)}"
    ties = f", {prompt.near_ties} near ties" if prompt.near_ties else ""
    return f"{prompt.verdict} ({found}{ties}{', partial' if prompt.partial else ''})"


def _place(place: Place, console: Console) -> None:
    console.print(plain(f"{place.words()}, {place.kind}: {place.ours} against {place.theirs}", "bold red"))
    console.print(Padding(plain(place.evidence), (0, 0, 0, 2), expand=False))


def _style(outcome: str) -> str:
    return STYLES.get(outcome, "red")
