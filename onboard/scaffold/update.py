"""Bring a package up to date: a three-way merge of its pristine copy, the user's files and a new rendering."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard import __version__
from onboard.scaffold import merge, new, origin
from onboard.scaffold.answers import Answers
from onboard.scaffold.files import exchange, staging
from onboard.scaffold.merge import Change, What
from onboard.scaffold.names import Names
from onboard.scaffold.record import FILE, Record
from onboard.scaffold.templating import render
from vllm_neuron.errors import ConfigError


@dataclass(frozen=True)
class Updated:
    """What an update did, or would do: the files that change, and whether they were written."""

    folder: Path
    changes: tuple[Change, ...]
    written: bool

    @property
    def conflicts(self) -> tuple[str, ...]:
        """``file:line`` of each conflict."""
        return tuple(f"{c.file}:{line}" for c in self.changes for line in c.lines)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        changes = [{"file": c.file, "what": c.what.value, "note": c.note} for c in self.changes]
        return {
            "folder": str(self.folder),
            "written": self.written,
            "changes": changes,
            "conflicts": list(self.conflicts),
        }


def update(folder: Path, source: str | None = None, *, dry_run: bool = False) -> Updated:
    """Render a package anew and merge that into what the user made of it.

    Args:
        folder: the package's folder.
        source: a model to read in place of the one that the package was made from.
        dry_run: say what would change, and change nothing.

    Raises:
        ConfigError: no package of ours, damaged records, or conflicts of an earlier update that still stand.
        OSError: a file can't be written; all are as they were.
    """
    former = Record.read(folder)
    _refuse_unresolved(folder, former)
    answered = former.answers()
    stem = answered["class_name"].removesuffix("ForCausalLM")
    names = Names(folder.name, answered["package"], answered["distribution"], stem)
    read = origin.again(former.origin) if source is None else origin.read(source)
    with staging(folder) as stage:
        now = render(Answers(names, read, new.code_of(read.facts, names)), stage / "new")
        changes = _changes(folder, former, now)
        if not dry_run and now != former:
            _write(folder, now, changes, stage)
            return Updated(folder, changes, written=True)
    return Updated(folder, changes, written=False)


def _refuse_unresolved(folder: Path, former: Record) -> None:
    texts = {name: merge.read(folder / name) or "" for name in former.files}
    places = [f"{name}:{line}" for name, text in texts.items() for line in merge.conflicts(text)]
    if places:
        raise ConfigError(
            "PACKAGE", ", ".join(places), "files without conflict markers", "Resolve these first, then update again."
        )


def _changes(folder: Path, former: Record, now: Record) -> tuple[Change, ...]:
    found = (
        merge.change(
            name, former.files.get(name), merge.read(folder / name), now.files.get(name), f"onboard {__version__}"
        )
        for name in sorted({*former.files, *now.files})
    )
    return tuple(change for change in found if change is not None)


def _write(folder: Path, now: Record, changes: tuple[Change, ...], stage: Path) -> None:
    """The changed files and the record go in together, so that a later merge starts from what was merged now."""
    merged, spare = stage / "merged", stage / "old"
    merged.mkdir()
    spare.mkdir()
    now.write(merged)
    put = {FILE}
    for change in changes:
        if change.text is not None:
            path = merged / change.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change.text.encode("utf-8"))
            put.add(change.file)
    exchange(merged, folder, put, {change.file for change in changes if change.what is What.REMOVED}, spare)
