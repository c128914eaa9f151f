"""The HTML view of ``onboard inspect``."""

from __future__ import annotations

from collections.abc import Iterator

from onboard.diff.inspect import Inspection
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.html import layer_maps, numbers_table, page, visible
from onboard.report.structure import html_trees


def render(model: Inspection) -> str:
    """One model as an HTML document."""

    return page(model.side.name, _body(model))


def _body(model: Inspection) -> Iterator[str]:

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
