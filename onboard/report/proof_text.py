"""Terminal view of a proof."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from onboard.prove.proof import Proof, Verdict
from onboard.report.proof_rows import HEADINGS, cell, noted, others, summary, told, variants
from onboard.report.terminal import plain

STYLES = {Verdict.PROVED: "green", Verdict.OPEN: "yellow", Verdict.FAILED: "red"}


def show(proof: Proof, console: Console) -> None:
    """Print the table of variants, then what failed, is open or was refused, then the verdict."""
    rows = variants(proof)
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("variant", *HEADINGS):
            table.add_column(heading, overflow="fold")
        for name, cells in rows:
            table.add_row(plain(name), *(plain(text, _style(text)) for text in cells))
        console.print(table)
    for check in others(proof):
        text = cell([check])
        console.print(plain(f"{check.what}: {text} ({check.seconds:.1f} s)", _style(text)))
    _list(console, "Failed:", told(proof.failures))
    _list(console, "Refused by name:", told(proof.refused))
    _list(console, "Not run:", told(proof.not_run))
    _list(console, "Open:", [f"{o.feature}: {o.file}:{o.line}, see {o.source or 'the README'}" for o in proof.open])
    _list(console, "Notes:", noted(proof.notes))
    console.print()
    if proof.divergence is not None:
        console.print(plain(proof.divergence.words(), "red"))
    console.print(plain(f"{summary(proof)} ({proof.seconds:.1f} s)", f"bold {STYLES[proof.verdict]}"))


def _style(text: str) -> str:
    return "red" if text.startswith("failed") else "yellow" if text in ("refused", "not run") else ""


def _list(console: Console, title: str, lines: list[str]) -> None:
    if lines:
        console.print()
        console.print(plain(title, "bold"))
        for line in lines:
            console.print(Padding(plain(line), (0, 0, 0, 2), expand=False))
