"""Pieces of the HTML views: the page, the layer map, tables. Every value is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from onboard.diff.rows import Side
from onboard.report import layer_map
from onboard.report.html_style import CSS
from onboard.report.plain import printable

COLOURS = 8
WIDTH = 1000.0


def visible(value: str) -> str:
    """``value`` as literal text of an element or an attribute."""
    return escape(printable(value))


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """A whole document: one file that loads nothing and runs nothing; ``style`` goes behind the common rules."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{visible(title)}</title>\n<style>{CSS}{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def numbers_table(names: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Names in the first column, one value for each model after it."""
    head = "".join(f"<th>{visible(name)}</th>" for name in names)
    lines = (
        f'<tr><td class="n">{visible(name)}</td>' + "".join(f"<td>{visible(v)}</td>" for v in values) + "</tr>"
        for name, values in rows
    )
    return f'<div class="scroll"><table class="numbers"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def layer_maps(sides: Sequence[Side]) -> str:
    """Bars of cells, one cell a layer, all on the scale of the deepest model, under one legend."""
    names = layer_map.kinds(sides)
    deepest = max((sum(count for count, _ in side.layers) for side in sides), default=1) or 1
    bars = "".join(_bar(side, names, deepest) for side in sides)
    legend = "".join(
        f'<span><i class="k{layer_map.index(names, name, COLOURS)}"></i>{visible(name)}</span>' for name in names
    )
    return f'{bars}<div class="legend">{legend}</div>'


def _bar(side: Side, names: Sequence[str], deepest: int) -> str:
    """One model's cells; neighbours of one kind are one path of separate cells, so that a deep model stays small."""
    cell = WIDTH / deepest
    gap = 0.0 if deepest > 400 else min(1.0, cell * 0.12)
    shapes, at = [], 0
    for count, label in side.layers:
        last = at + count - 1
        where = f"layer {at}" if count == 1 else f"layers {at} to {last}"
        if gap:
            cells = "".join(f"M{(at + i) * cell:.2f} 0h{cell - gap:.2f}v28h-{cell - gap:.2f}z" for i in range(count))
        else:
            cells = f"M{at * cell:.2f} 0h{count * cell:.2f}v28h-{count * cell:.2f}z"
        kind = layer_map.index(names, label, COLOURS)
        shapes.append(f'<path class="k{kind}" d="{cells}"><title>{visible(f"{where}: {label}")}</title></path>')
        at += count
    told = visible(layer_map.counts(side))
    return (
        f'<div class="map"><div class="name">{visible(side.name)}: {at} layers ({told})</div>'
        f'<svg viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label="{told}">'
        f"{''.join(shapes)}</svg></div>"
    )
