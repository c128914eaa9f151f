"""Rich renderables that the terminal views share, made for 80 columns: values wrap, nothing is cut."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onboard.diff.rows import Side
from onboard.report import layer_map
from onboard.report.plain import printable

MAP_LIMIT = 240
FIELD = 21


def console(to_file: bool = False) -> Console:
    """The console for stdout, or one that collects plain text for a file."""
    if to_file:
        return Console(file=StringIO(), width=80, color_system=None, highlight=False, emoji=False)
    return Console(highlight=False, emoji=False, soft_wrap=False)


def can_show(text: str) -> bool:
    """Whether stdout's encoding has the characters of ``text``."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def plain(text: str, style: str = "") -> Text:
    """A text that is never read as markup."""
    return Text(printable(text), style=style, overflow="fold")


def name(path: str, style: str = "") -> Text:
    """A field's path for the first column of a grid, wrapped after a dot or an underscore and never within a word."""
    lines = [""]
    for piece in re.findall(r"[^._ ]*[._ ]|[^._ ]+", printable(path)):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > FIELD:
            lines.append("")
        lines[-1] += piece
    return Text("\n".join(line.rstrip() for line in lines), style=style, overflow="fold")


def short(name: str) -> str:
    """A model's name without its owner or folders."""
    return name.rstrip("/").rpartition("/")[2] or name


def field_name(path: str) -> str:
    """A field's path without what its heading says already."""
    return path.removeprefix("attention.").removeprefix("positions.")


def origin(source: str | None, section: str) -> str:
    """A source without the section's path in front of each key; the heading's notes name the section."""
    return (source or "").replace(f"({section}.", "(") if section else source or ""


def grid(columns: int) -> Table:
    """A borderless table: one column of names, the rest share the width evenly."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=FIELD, overflow="fold")
    for _ in range(columns):
        table.add_column(ratio=1, overflow="fold")
    return table


def facts(sides: Sequence[Side], rows: Iterable[tuple[str, Sequence[str]]]) -> Table:
    """Names and one value for each side, under the sides' names."""
    table = grid(len(sides))
    if len(sides) > 1:
        table.add_row("", *(plain(short(side.name), "bold") for side in sides))
    for field, values in rows:
        table.add_row(name(field, "dim"), *(plain(value) for value in values))
    return table


def layers(sides: Sequence[Side]) -> list[RenderableType]:
    """One cell a layer, wrapped at the width, with a legend; long models as runs."""
    names = layer_map.kinds(sides)
    glyphs = layer_map.GLYPHS if can_show(layer_map.GLYPHS) else layer_map.LETTERS
    out: list[RenderableType] = []
    for side in sides:
        total = sum(count for count, _ in side.layers)
        if len(sides) > 1:
            out.append(plain(f"{short(side.name)}: {total} layers", "dim"))
        if total > MAP_LIMIT:
            out.append(Padding(plain(layer_map.counts(side)), (0, 0, 0, 2)))
            continue
        cells = Text(overflow="fold")
        for count, label in side.layers:
            i = layer_map.index(names, label, len(glyphs))
            cells.append(glyphs[i] * count, style=layer_map.STYLES[i])
        out.append(Padding(cells, (0, 0, 0, 2)))
    legend = Text("  ")
    for label in names:
        i = layer_map.index(names, label, len(glyphs))
        legend.append(glyphs[i], style=layer_map.STYLES[i]).append(f" {printable(label)}   ", style="dim")
    out.append(legend)
    return out
