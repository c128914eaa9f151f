"""Answers -> files: copier fills the templates, ruff lays the Python files out."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onboard.errors import RunError
from onboard.scaffold.answers import Answers
from onboard.scaffold.record import Record
from onboard.scaffold.shipped import templates


def render(answers: Answers, folder: Path) -> Record:
    """Write a package with its record into a folder that is not there yet.

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
    record = Record.of(folder, answers.origin.to_json())
    record.write(folder)
    return record


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
