"""One model: the terminal, JSON, Markdown and HTML views of ``onboard inspect``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onboard.diff.inspect import Inspection
from onboard.diff.show import text
from onboard.report import numbers

if TYPE_CHECKING:
    from rich.console import Console


def show(model: Inspection, console: Console) -> None:
    """Print one model."""
    from onboard.report.structure import lines
    from onboard.report.terminal import facts, field_name, grid, layers, origin, plain

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
        table.add_row(plain(field_name(field)), plain(text(value)), plain(origin(source, model.side.section), "dim"))
        console.print(table)
    for line in (*model.side.notes, *lines(model.side)):
        console.print(plain(line, "dim"))


def markdown(model: Inspection) -> str:
    """One model as Markdown."""
    from onboard.report.markdown import escape, table
    from onboard.report.structure import markdown_trees

    side = model.side
    parts = [f"# {escape(side.name)}", "\n".join(f"- {escape(line)}" for line in (*model.head, *side.warnings))]
    parts.append(table(["", "value"], [(name, *values) for name, values in numbers.costs([side])]))
    rows = [(i, f, text(v), s or "") for i, f, v, s in model.traits]
    parts.append(table(["item", "field", "value", "source"], rows))
    parts += ["\n".join(f"- {escape(note)}" for note in side.notes)] if side.notes else []
    return "\n\n".join([*parts, *markdown_trees([side])]) + "\n"


def html(model: Inspection) -> str:
    """One model as an HTML document."""
    from onboard.report.html import page

    return page(model.side.name, _html(model))


def _html(model: Inspection) -> Iterator[str]:
    from onboard.report.html import layer_maps, numbers_table, visible
    from onboard.report.structure import html_trees

    side = model.side
    yield f"<h1>{visible(side.name)}</h1>"
    yield from (f'<p class="dim">{visible(line)}</p>' for line in model.head)
    if side.warnings or side.notes:
        yield '<ul class="notes">' + "".join(f"<li>{visible(n)}</li>" for n in (*side.warnings, *side.notes)) + "</ul>"
    yield "<h2>Layers</h2>" + layer_maps([side])
    yield "<h2>Sizes and cost</h2>" + numbers_table(["value"], numbers.costs([side]))
    item = None
    rows: list[tuple[str, list[str]]] = []
    for name, field, value, source in (*model.traits, ("", "", None, None)):
        if name != item and rows:
            yield f"<h2>{visible(item or '')}</h2>" + numbers_table(["value", "source"], rows)
            rows = []
        item = name
        rows.append((field, [text(value), source or ""]))
    yield html_trees([side])
