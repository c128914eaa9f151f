"""Markdown that no value can break out of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onboard.report.plain import printable

SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|`*_[]#~!"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})


def escape(value: str) -> str:
    """``value`` as literal text of one table cell; control characters are spelled out."""
    return printable(" ".join(value.split())).translate(SPECIAL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are escaped here."""
    lines = [head, ["---"] * len(head), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
