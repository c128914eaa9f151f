"""Terminal view of a bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onboard.report.terminal import plain
from vllm_neuron.accuracy.results import LevelResult, outcome_of

if TYPE_CHECKING:
    from vllm_neuron.accuracy.bisect import Bisection

STYLES = {"pass": "green", "fail": "red", "not run": "yellow", "refused": "yellow"}
# Blocks that differ are listed up to here; the first ones matter.
MOST = 12


def show(found: Bisection, console: Console) -> None:
    """Print what was run, what differs, and the place."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("run", "verdict", "seconds"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "seconds" else "left")
    for way in found.ways:
        table.add_row(plain(f"{way.name}, float32"), _verdict(way.verdict), plain(f"{way.seconds:.1f}"))
    for level in found.levels:
        dtype = level.blocks[0].dtype if level.blocks else ""
        table.add_row(plain(f"modules, {dtype}"), _verdict(level.verdict), plain(f"{level.seconds:.1f}"))
    console.print(table)
    for level in found.levels:
        _differ(level, console)
    for note in dict.fromkeys(note for level in found.levels for note in level.notes):
        console.print(plain(f"note: {note}"))
    console.print()
    if found.place is not None:
        place = found.place
        _row(console, "module", f"{place.ours} against {place.theirs}")
        _row(
            console, "error", f"{place.kind}{'' if place.position is None else f', from position {place.position} on'}"
        )
        _row(console, "evidence", place.evidence)
    text = f"{found.verdict} ({found.tokens} tokens, {found.seconds:.1f} s)"
    console.print(plain(text, f"bold {STYLES[found.outcome]}"))


def _differ(level: LevelResult, console: Console) -> None:
    failed = [block for block in level.blocks if block.outcome == "fail"]
    for block in failed[:MOST]:
        console.print(plain(f"  {block.ours} ({block.phase}): {block.verdict}", "red"))
    if len(failed) > MOST:
        console.print(plain(f"  and {len(failed) - MOST} more"))


def _row(console: Console, title: str, text: str) -> None:
    console.print(plain(f"{title:<9}{text}"))


def _verdict(verdict: str) -> Text:
    return plain(verdict, STYLES[outcome_of(verdict)])
