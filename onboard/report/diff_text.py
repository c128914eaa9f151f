"""The terminal view of a diff."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onboard.diff.rows import ITEMS, Diff, Row
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.structure import lines
from onboard.report.terminal import can_show, facts, field_name, grid, layers, name, origin, plain


def show(diff: Diff, console: Console) -> None:
    """Print ``diff``: the sentence, the numbers, the layer map, then the rows of each item."""
    sides = (diff.a, diff.b)
    console.print(plain(diff.sentence, "bold"))
    if diff.why:
        console.print(plain(diff.why, "dim"))
    for warning in dict.fromkeys(f"{side.name}: {warning}" for side in sides for warning in side.warnings):
        console.print(plain(warning, "yellow"))
    console.print()
    console.print(facts(sides, numbers.costs(sides) + numbers.size_rows(diff.of_kind("size"))))
    console.print()
    for part in layers(sides):
        console.print(part)
    for item in ITEMS:
        rows = [row for row in diff.of_kind("semantic") if row.item == item]
        if rows:
            console.print()
            console.rule(plain(item, "bold"), align="left", style="dim", characters="─" if can_show("─") else "-")
            for row in rows:
                _row(row, diff, console)
    _spelling(diff, console)
    for side in sides:
        for note in side.notes:
            console.print(plain(f"{side.name}: {note}", "dim"))
        for line in lines(side):
            console.print(plain(line, "dim"))


def _row(row: Row, diff: Diff, console: Console) -> None:
    table = grid(2)
    table.add_row(name(field_name(row.field), "bold"), plain(text(row.a)), plain(text(row.b)))
    sources = (origin(row.a_source, diff.a.section), origin(row.b_source, diff.b.section))
    table.add_row("", *(plain(source, "dim") for source in sources))
    console.print(table)
    done, to_do = ("✓", "✗") if can_show("✓✗") else ("ok", "TO WRITE")
    line = Text(overflow="fold")
    if row.goes_with is not None:
        told = row.covered_by if row.missing is None else row.missing
        line.append_text(plain(f"- part of {row.goes_with}, not counted: {told}"))
    elif row.missing is None:
        line.append_text(plain(f"{done} {row.covered_by}", "green"))
    else:
        line.append_text(plain(f"{to_do} to write: {row.missing}", "red"))
    line.append_text(plain(f"  [{', '.join(row.affects)}]", "dim"))
    console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _spelling(diff: Diff, console: Console) -> None:
    rows = diff.of_kind("spelling")
    if not rows:
        return
    console.print()
    console.rule(plain("the same, spelled differently", "bold"), align="left", style="dim")
    table = grid(2)
    for row in rows:
        table.add_row(name(row.field), plain(text(row.a)), plain(text(row.b)))
    console.print(table)
