"""A folder that appears complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".partial"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its place when the block ends without an exception.

    A previous `target` stays until then. Leftovers of a run that was killed are removed first; a run that is still
    alive keeps its own.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.{os.getpid()}.", suffix=SUFFIX, dir=target.parent))
    try:
        yield stage
        stage.chmod(0o755)
        _replace(stage, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _replace(stage: Path, target: Path) -> None:
    if not target.exists():
        stage.rename(target)
        return
    old = stage.with_name(stage.name.removesuffix(SUFFIX) + ".old" + SUFFIX)
    target.rename(old)
    stage.rename(target)
    shutil.rmtree(old)


def _remove_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(f".{target.name}.*{SUFFIX}"):
        owner = leftover.name.removeprefix(f".{target.name}.").split(".")[0]
        if not owner.isdigit() or not _alive(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
