"""The terminal view of ``onboard inspect``."""

from __future__ import annotations

from rich.console import Console

from onboard.diff.inspect import Inspection
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.structure import lines
from onboard.report.terminal import facts, field_name, grid, layers, origin, plain
from onboard.report.terminal import name as label


def show(model: Inspection, console: Console) -> None:
    """Print one model."""
    console.print(plain(model.side.name, "bold"))
    for line in model.head:
        console.print(plain(line, "dim"))
    for warning in model.side.warnings:
        console.print(plain(warning, "yellow"))
    console.print()
    console.print(facts([model.side], numbers.costs([model.side])))
    for part in layers([model.side]):
        console.print(part)
    item = None
    for name, field, value, source in model.traits:
        if name != item:
            item = name
            console.print()
            console.print(plain(item, "bold"))
        table = grid(2)
        table.add_row(label(field_name(field)), plain(text(value)), plain(origin(source, model.side.section), "dim"))
        console.print(table)
    for line in (*model.side.notes, *lines(model.side)):
        console.print(plain(line, "dim"))
