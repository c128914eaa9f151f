"""The kinds of layers of several models with one colour and one glyph for each kind."""

from __future__ import annotations

from collections.abc import Sequence

from onboard.diff.rows import Side

GLYPHS = "█▒░▚◆▞◇▓"
LETTERS = "#=.+o*x%"
STYLES = ("blue", "dark_orange", "green", "magenta", "red", "cyan", "yellow", "white")


def kinds(sides: Sequence[Side]) -> list[str]:
    """All names of layer kinds, in order of first use over ``sides``."""
    return list(dict.fromkeys(label for side in sides for _, label in side.layers))


def index(names: Sequence[str], label: str, size: int) -> int:
    """Which of ``size`` colours or glyphs stands for ``label``."""
    return names.index(label) % size


def counts(side: Side) -> str:
    """How many layers of each kind: ``50 sliding, 10 full``; semicolons where a name has a comma."""
    totals: dict[str, int] = {}
    for count, label in side.layers:
        totals[label] = totals.get(label, 0) + count
    comma = ";" if any("," in label for label in totals) else ","
    return f"{comma} ".join(f"{n} {label}" for label, n in totals.items())
