"""What a package remembers of its making: what it was made from, and every file as it was rendered.

One JSON file, so that no tool takes the pristine copies for sources; texts are lists of lines, so that it can be
compared under version control.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vllm_neuron.errors import ConfigError

FOLDER = ".onboard"
FILE = f"{FOLDER}/record.json"
_NAMED = "a package that `onboard new` made"
_RENEW = "Restore the file from version control, or write the package again with `onboard new --force`."


@dataclass(frozen=True)
class Record:
    """The record of one package.

    Attributes:
        origin: as :meth:`onboard.scaffold.origin.Origin.to_json` gives it.
        files: relative name -> text as rendered.
    """

    origin: Mapping[str, Any]
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, origin: Mapping[str, Any]) -> Record:
        """The record of a folder that was just rendered."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return cls(origin, {p.relative_to(folder).as_posix(): p.read_bytes().decode("utf-8") for p in paths})

    def text(self) -> str:
        """The content of the file."""
        files = {name: text.splitlines(keepends=True) for name, text in self.files.items()}
        return json.dumps({"origin": self.origin, "files": files}, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write the file below a package's folder."""
        path = folder / FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.text(), encoding="utf-8", newline="")

    @classmethod
    def read(cls, folder: Path) -> Record:
        """The record of a package.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        path = folder / FILE
        if not path.is_file():
            raise ConfigError("PACKAGE", str(folder), _NAMED, f"It has no {FILE}; name the package's own folder.")
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            files = {name: "".join(lines) for name, lines in raw["files"].items()}
            found = cls({key: raw["origin"][key] for key in ("kind", "label", "architecture", "raw")}, files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(str(path), f"{type(error).__name__}: {error}", _NAMED, _RENEW) from error
        outside = [name for name in files if not _inside(name)]
        if outside:
            raise ConfigError(str(path), outside, "names of files inside the package", _RENEW)
        return found

    def answers(self) -> dict[str, str]:
        """The answers of the templates' questions.

        Raises:
            ConfigError: they are not as they were written.
        """
        try:
            lines = self.files[".copier-answers.yml"].splitlines()
            pairs = [line.partition(": ") for line in lines if line.strip() and not line.startswith("#")]
            found = {key: json.loads(value) for key, _, value in pairs}
            answers = {key: str(found[key]) for key in ("package", "distribution", "class_name")}
        except (ValueError, KeyError) as error:
            raise ConfigError(FILE, f"{type(error).__name__}: {error}", _NAMED, _RENEW) from error
        for key, value in answers.items():
            # They become paths, code and TOML; a distribution has hyphens.
            word = value.replace("-", "_") if key == "distribution" else value
            if not (word.isascii() and word.isidentifier()):
                raise ConfigError(f"{FILE}: {key}", value, _NAMED, _RENEW)
        return answers


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
