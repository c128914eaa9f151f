"""The module trees of ``--structure`` in the three views for people."""

from __future__ import annotations

from collections.abc import Sequence

from onboard.diff.rows import Side
from onboard.report.html import visible
from onboard.report.markdown import escape
from onboard.report.plain import printable


def lines(side: Side) -> list[str]:
    """What is known of one model's module tree; empty when nobody asked."""
    if side.structure is None:
        return []
    if "error" in side.structure:
        return [f"no module tree: {side.structure['error']}"]
    return list(side.structure["modules"])


def html_trees(sides: Sequence[Side]) -> str:
    """A section with the trees that were asked for."""
    told = [(side.name, lines(side)) for side in sides if side.structure is not None]
    if not told:
        return ""
    blocks = (f"<p>{visible(name)}</p><pre>" + "\n".join(map(visible, tree)) + "</pre>" for name, tree in told)
    return "<h2>Modules in transformers</h2>" + "".join(blocks)


def markdown_trees(sides: Sequence[Side]) -> list[str]:
    """Blocks of Markdown: indented code, which nothing inside can end."""
    out = []
    for side in sides:
        if tree := lines(side):
            out += [f"## modules of {escape(side.name)}", "\n".join(f"    {printable(line)}" for line in tree)]
    return out
