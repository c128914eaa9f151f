"""Write a new package: whole or not at all, and nothing of anybody else's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onboard.scaffold.answers import Answers
from onboard.scaffold.files import exchange, staging
from onboard.scaffold.record import FILE, Record
from onboard.scaffold.templating import render
from vllm_neuron.errors import ConfigError


@dataclass(frozen=True)
class Created:
    """A package that was written: its folder and its files, relative, without its record."""

    folder: Path
    files: tuple[str, ...]


def refuse_existing(folder: Path, force: bool) -> None:
    """Stop, before anything else is done, when a package can't go into the folder.

    Raises:
        ConfigError: something is there, and ``force`` is not given or can't help.
    """
    if not folder.parent.is_dir():
        raise ConfigError("folder", str(folder.parent), "a folder that is there", "Make it first, or use --output.")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError("folder", str(folder), "a folder, or nothing", "Choose another name or --output.")
    if force or not folder.is_dir() or not any(folder.iterdir()):
        return
    if (folder / FILE).is_file():
        action = (
            "Run `onboard update` there to keep your edits, or give --force to write again what `onboard new` wrote."
        )
    else:
        action = "Choose another name or --output, or give --force to add the package to what is there."
    raise ConfigError("folder", str(folder), "a folder that is not there yet", action)


def create(answers: Answers, folder: Path, *, force: bool = False) -> Created:
    """Render a package into a folder beside its place, then put it there.

    Args:
        answers: what to render.
        folder: the package's folder; its parent must be there.
        force: write again what an earlier run wrote, edits included; all other files stay as they are.

    Raises:
        ConfigError: as :func:`refuse_existing`; or, with ``force``, a file of the same name that is not ours.
        OSError, RunError: the package can't be written; nothing was changed.
    """
    refuse_existing(folder, force)
    with staging(folder) as stage:
        fresh = stage / "new"
        record = render(answers, fresh)
        if folder.is_dir():
            _put_into(fresh, record, folder, stage / "old")
        else:
            fresh.replace(folder)
    return Created(folder, tuple(record.files))


def _put_into(fresh: Path, record: Record, folder: Path, spare: Path) -> None:
    former = Record.read(folder).files if (folder / FILE).is_file() else {}
    foreign = sorted(name for name in record.files if name not in former and (folder / name).exists())
    if foreign:
        raise ConfigError(
            "folder",
            f"{folder}: {', '.join(foreign)}",
            "no files of these names that `onboard new` did not write",
            "Move them away, or choose another folder with --output.",
        )
    gone = {name for name in former if name not in record.files and _untouched(folder / name, former[name])}
    spare.mkdir()
    exchange(fresh, folder, {*record.files, FILE}, gone, spare)


def _untouched(path: Path, pristine: str) -> bool:
    return path.is_file() and path.read_bytes() == pristine.encode("utf-8")
