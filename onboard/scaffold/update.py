"""Bring a package up to date: a three-way merge of its pristine copy, the user's files and a new rendering."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard import __version__
from onboard.scaffold import merge, new, origin
from onboard.scaffold.answers import Answers
from onboard.scaffold.files import exchange, staging
from onboard.scaffold.merge import Change, What
from onboard.scaffold.names import Names
from onboard.scaffold.templating import BASE, KEPT, ORIGIN, listing, render
from vllm_neuron.errors import ConfigError

ANSWERS = ".copier-answers.yml"
MADE_BY_US = "a package that `onboard new` made"


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
    answered, saved = _records(folder)
    _refuse_unresolved(folder)
    names = Names(folder.name, answered["package"], answered["distribution"], _stem(answered["class_name"]))
    read = origin.again(saved) if source is None else origin.read(source)
    with staging(folder) as stage:
        fresh = stage / "new"
        render(Answers(names, read, new.code_of(read.facts, names)), fresh)
        changes = _changes(folder, fresh)
        if not dry_run and not _same_records(folder, fresh):
            _write(folder, fresh, changes, stage)
            return Updated(folder, changes, written=True)
    return Updated(folder, changes, written=False)


def _records(folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    if not (folder / BASE).is_dir():
        raise ConfigError("PACKAGE", str(folder), MADE_BY_US, f"It has no {BASE}; name the package's own folder.")
    try:
        lines = (folder / BASE / ANSWERS).read_text(encoding="utf-8").splitlines()
        pairs = [line.partition(": ") for line in lines if line.strip() and not line.startswith("#")]
        answers = {key: json.loads(value) for key, _, value in pairs}
        saved = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}/{KEPT}", f"{type(error).__name__}: {error}", MADE_BY_US, _RENEW) from error
    _require(folder, answers, ("package", "distribution", "class_name"))
    _require(folder, saved, ("kind", "label", "architecture", "raw"))
    return answers, saved


_RENEW = "Restore the file from version control, or write the package again with `onboard new --force`."


def _require(folder: Path, found: Any, keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if not isinstance(found, Mapping) or key not in found]
    if missing:
        raise ConfigError(f"{folder}/{KEPT}", f"no {', '.join(missing)}", MADE_BY_US, _RENEW)


def _stem(class_name: str) -> str:
    return class_name.removesuffix("ForCausalLM")


def _refuse_unresolved(folder: Path) -> None:
    places = [
        f"{name}:{line}" for name in listing(folder / BASE) for line in merge.conflicts(merge.read(folder / name) or "")
    ]
    if places:
        raise ConfigError(
            "PACKAGE", ", ".join(places), "files without conflict markers", "Resolve these first, then update again."
        )


def _changes(folder: Path, fresh: Path) -> tuple[Change, ...]:
    found = []
    for name in sorted({*listing(folder / BASE), *listing(fresh)}):
        base, mine, fresh_text = (merge.read(side / name) for side in (folder / BASE, folder, fresh))
        change = merge.change(name, base, mine, fresh_text, f"onboard {__version__}")
        if change is not None:
            found.append(change)
    return tuple(found)


def _same_records(folder: Path, fresh: Path) -> bool:
    names = {path.relative_to(fresh) for path in (fresh / KEPT).rglob("*") if path.is_file()}
    here = {path.relative_to(folder) for path in (folder / KEPT).rglob("*") if path.is_file()}
    return names == here and all((fresh / n).read_bytes() == (folder / n).read_bytes() for n in names)


def _write(folder: Path, fresh: Path, changes: tuple[Change, ...], stage: Path) -> None:
    """The changed files and the records go in together, so that a later merge starts from what was merged now."""
    merged, spare = stage / "merged", stage / "old"
    spare.mkdir()
    shutil.copytree(fresh / KEPT, merged / KEPT)
    kept = {path.relative_to(merged).as_posix() for path in merged.rglob("*") if path.is_file()}
    here = {path.relative_to(folder).as_posix() for path in (folder / KEPT).rglob("*") if path.is_file()}
    put = set(kept)
    for change in changes:
        if change.text is not None:
            path = merged / change.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change.text.encode("utf-8"))
            put.add(change.file)
    gone = {change.file for change in changes if change.what is What.REMOVED}
    exchange(merged, folder, put, gone | (here - kept), spare)
