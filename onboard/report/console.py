"""Output that fits where it goes: colours and bars on a terminal, plain lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs.")]


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, indent=2))


def mark(status: str) -> str:
    """`status` in its colour; typer drops the colour when stdout is no terminal."""
    colours = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "error": typer.colors.RED}
    return typer.style(f"{status:<5}", fg=colours.get(status))


class Progress:
    """Steps of a long command: bars on a terminal, silence elsewhere."""

    def __init__(self, enabled: bool | None = None) -> None:
        self.enabled = sys.stderr.isatty() if enabled is None else enabled

    @contextmanager
    def step(self, label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show one step; the value is a function that takes the amount done (of `total`, where it is known)."""
        if not self.enabled:
            yield lambda amount: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=total)
            yield lambda amount: bars.advance(task, amount)
            bars.update(task, total=1, completed=1)

    @contextmanager
    def track(self) -> Iterator[Callable[[str, int, int], None]]:
        """One bar for many steps; the value is called with what runs now, the steps done, and the steps in all."""
        if not self.enabled:
            yield lambda label, done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task("starting", total=None)
            yield lambda label, done, total: bars.update(task, description=label, completed=done, total=total)
