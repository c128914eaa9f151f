"""Answers -> files: copier fills the templates, ruff lays the Python files out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from onboard.errors import RunError
from onboard.scaffold.answers import Answers
from onboard.scaffold.shipped import templates

KEPT = ".onboard"
BASE = f"{KEPT}/base"
ORIGIN = f"{KEPT}/origin.json"


def render(answers: Answers, folder: Path) -> list[str]:
    """Write a package into a folder that is not there yet, with its pristine copy in ``.onboard/base``.

    Returns:
        the files, relative to the folder, without those in ``.onboard``.

    Raises:
        RunError: the rendered Python files can't be laid out, which is a fault of the renderer.
    """
    import copier

    copier.run_copy(
        str(templates() / "package"),
        folder,
        data=answers.data(),
        defaults=True,
        overwrite=True,
        quiet=True,
        unsafe=False,
        settings=copier.Settings(),
    )
    _lay_out(folder)
    files = listing(folder)
    shutil.copytree(folder, folder / BASE, ignore=shutil.ignore_patterns(KEPT))
    text = json.dumps(answers.origin.to_json(), indent=1)
    (folder / ORIGIN).write_text(text + "\n", encoding="utf-8")
    return files


def listing(folder: Path) -> list[str]:
    """Every file below a folder, relative, sorted; not those in ``.onboard``."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if path.parts[0] != KEPT)


def _lay_out(folder: Path) -> None:
    from ruff import find_ruff_bin

    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        done = subprocess.run(
            [find_ruff_bin(), *command, "--no-cache", "."],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RunError(
                "rendered code", done.stdout or done.stderr, "Python that ruff can read", "Please report it."
            )
