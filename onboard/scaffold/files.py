"""Files that change together or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vllm_neuron.errors import ConfigError


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside ``target``, on the same file system, that is gone after the block.

    Raises:
        ConfigError: the parent is not there, or can't be written to.
    """
    target = Path(os.path.abspath(target))
    try:
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        raise ConfigError(
            "folder", str(target), f"a place that can be written to ({error.strerror})", "Check the parent folder."
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def exchange(staged: Path, target: Path, put: Iterable[str], remove: Iterable[str], spare: Path) -> None:
    """Move files from ``staged`` into ``target`` and take others away; on any failure all is as it was before.

    Args:
        staged: folder with the new files.
        target: an existing folder.
        put: files to move, relative; existing ones are replaced.
        remove: files to take away, relative.
        spare: an empty folder on the same file system, for what is replaced.

    Raises:
        ConfigError: a folder on the way is a link or a file; nothing was changed.
        OSError: what the file system says; everything was put back.
    """
    put, remove = sorted(put), sorted(remove)
    for name in (*put, *remove):
        _refuse_detour(target, name)
    moved: list[str] = []
    made: list[Path] = []
    new: list[str] = []
    try:
        for name in (*put, *remove):
            if (target / name).exists():
                (spare / name).parent.mkdir(parents=True, exist_ok=True)
                moved.append(name)
                (target / name).replace(spare / name)
        for name in put:
            _make_parents(target / name, target, made)
            new.append(name)
            (staged / name).replace(target / name)
    except BaseException:
        # The last name of each list may not have been moved yet.
        for name in new:
            if not (staged / name).exists():
                (target / name).unlink(missing_ok=True)
        for name in moved:
            if (spare / name).exists():
                (spare / name).replace(target / name)
        for folder in reversed(made):
            if folder.is_dir():
                folder.rmdir()
        raise
    for name in remove:
        _drop_empty_parents(target / name, target)


def _refuse_detour(target: Path, name: str) -> None:
    place = target
    for part in Path(name).parts[:-1]:
        place = place / part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise ConfigError("folder", str(place), "a plain folder", "Move it away; nothing was changed.")
    if (target / name).is_symlink() or (target / name).is_dir():
        raise ConfigError("folder", str(target / name), "a plain file", "Move it away; nothing was changed.")


def _make_parents(path: Path, top: Path, made: list[Path]) -> None:
    missing = [parent for parent in path.parents if parent.is_relative_to(top) and not parent.exists()]
    for folder in reversed(missing):
        made.append(folder)
        folder.mkdir()


def _drop_empty_parents(path: Path, top: Path) -> None:
    for parent in path.parents:
        if parent == top or not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()
