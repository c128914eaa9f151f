"""Three-way merge of one file: what was rendered, what the user made of it, what is rendered now."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from vllm_neuron.errors import ConfigError

START, MIDDLE, END = "<<<<<<<", "=======", ">>>>>>>"
_MARKER = re.compile(rf"^{START} ", re.MULTILINE)


class What(StrEnum):
    """What an update does to a file."""

    ADDED = "added"
    UPDATED = "updated"
    MERGED = "merged"
    CONFLICT = "conflict"
    REMOVED = "removed"
    KEPT = "kept"


@dataclass(frozen=True)
class Change:
    """One file of an update.

    Attributes:
        file: relative to the package.
        what: what happens to it.
        lines: first line of each conflict, where its marker stands.
        note: why it is left as it is.
        text: its new content; None when the file is not written.
    """

    file: str
    what: What
    lines: tuple[int, ...] = ()
    note: str = ""
    text: str | None = None


def read(path: Path) -> str | None:
    """A text file exactly as it is, None when it is not there.

    Raises:
        ConfigError: it is no UTF-8.
    """
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), str(error), "UTF-8 text", "Save it as UTF-8.") from None


def conflicts(text: str) -> tuple[int, ...]:
    """The lines on which conflicts begin."""
    return tuple(text.count("\n", 0, found.start()) + 1 for found in _MARKER.finditer(text))


def change(file: str, base: str | None, mine: str | None, new: str | None, label: str) -> Change | None:
    """What happens to a file; None when it stays as it is and nothing need be said.

    Args:
        file: its name.
        base: as it was rendered.
        mine: as the user has it.
        new: as it is rendered now. Each None: there is no such file.
        label: what the new side is called in a conflict.
    """
    if new in (base, mine):
        return None
    if new is None:
        if mine is None:
            return None
        if mine == base:
            return Change(file, What.REMOVED)
        return Change(file, What.KEPT, note="no longer rendered, and you edited it")
    if mine is None and base is not None:
        return Change(file, What.KEPT, note="you removed it, and its rendering changed")
    if mine is None:
        return Change(file, What.ADDED, text=new)
    if mine == base:
        return Change(file, What.UPDATED, text=new)
    text = _merged(base or "", mine, new, label)
    lines = conflicts(text)
    return Change(file, What.CONFLICT if lines else What.MERGED, lines, text=text)


def _merged(base: str, mine: str, new: str, label: str) -> str:
    from merge3 import Merge3

    # A last line without its end would run into a marker.
    sides = [text if text.endswith("\n") or not text else text + "\n" for text in (base, mine, new)]
    before, left, right = (side.splitlines(keepends=True) for side in sides)
    merge = Merge3(before, left, right)
    return "".join(
        merge.merge_lines(
            name_a="yours", name_b=label, start_marker=START, mid_marker=MIDDLE, end_marker=END, reprocess=True
        )
    )
