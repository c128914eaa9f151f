"""From a name and a source to a package on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.checks.stack import need
from onboard.facts.api import ModelFacts
from onboard.scaffold import names, origin
from onboard.scaffold.answers import Answers
from onboard.scaffold.code import ModelCode
from onboard.scaffold.names import Names
from onboard.scaffold.package import create, refuse_existing


@dataclass(frozen=True)
class Made:
    """A package that was written, and what there is to say about it.

    Attributes:
        folder: where it is.
        files: what was written, relative.
        answers: what it was rendered from.
        warnings: about names and about the config.
    """

    folder: Path
    files: tuple[str, ...]
    answers: Answers
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        code, own = self.answers.code, self.answers.names
        return {
            "package": own.package,
            "distribution": own.distribution,
            "folder": str(self.folder),
            "files": list(self.files),
            "class_name": code.class_name,
            **self.answers.manifest(),
            "detected": [list(row) for row in code.detected],
            "warnings": list(self.warnings),
        }


def code_of(facts: ModelFacts, own: Names) -> ModelCode:
    """The model's code in the package's own names, as the renderer writes it.

    Raises:
        UnsupportedError: torch or transformers are not installed; the code is confirmed against a tiny reference.
    """
    need("to confirm the code against a tiny reference", "torch", "transformers")
    from onboard.scaffold.render import model_code

    return model_code(facts, stem=own.stem, module=own.package)


def make(
    name: str, source: str, folder: Path | None = None, *, architecture: str | None = None, force: bool = False
) -> Made:
    """Write a package. Names and the folder are looked at before anything is read.

    Args:
        name: as the user typed it.
        source: a model id, a folder, a ``config.json`` or a model type.
        folder: the package's folder; default: the name, in the current folder.
        architecture: a class name that takes the place of the config's ``architectures``.
        force: write again what an earlier run wrote.

    Raises:
        ConfigError, UnsupportedError: naming what can't be done; nothing was written.
    """
    checked = names.names(name, folder or Path(name))
    target = folder or Path(checked.typed)
    refuse_existing(target, force)
    found = origin.read(source, architecture)
    answers = Answers(checked, found, code_of(found.facts, checked))
    created = create(answers, target, force=force)
    claims = names.claims(answers.code.architecture, checked.distribution)
    return Made(created.folder, created.files, answers, (*checked.warnings, *claims, *found.facts.warnings))
