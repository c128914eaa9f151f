"""Everything the templates are filled with, as plain values: no template computes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onboard import __version__
from onboard.errors import RunError
from onboard.scaffold import names as checked
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.names import Names
from onboard.scaffold.origin import Origin
from vllm_neuron.errors import ConfigError


@dataclass(frozen=True)
class Answers:
    """A package to be rendered: its names, what it is made from, and its code.

    Raises:
        ConfigError: the architecture is no class name, or a class of the code would hide a name that it imports.
        RunError: the code is not Python.
    """

    names: Names
    origin: Origin
    code: ModelCode

    def __post_init__(self) -> None:
        checked.architecture(self.code.architecture)
        for text in (self.code.config_py, self.code.model_py, self.code.factory_py):
            _refuse_clashes(text, self.names)

    def data(self) -> dict[str, Any]:
        """Name -> value of every variable in the templates."""
        code, names, model = self.code, self.names, self.origin.label
        return {
            "package": names.package,
            "distribution": names.distribution,
            "class_name": code.class_name,
            "architecture": code.architecture,
            "model": model,
            "model_type": self.origin.facts.model_type or "",
            "description": f"{model} ({code.architecture}) for AWS Trainium, on neuron-onboard.",
            "docstring": f"{model} on neuron-onboard.",
            "detected": table(("feature", "value"), code.detected),
            "open": [{"slug": s, "literal": json.dumps(o.feature), "hint": _hint(o)} for s, o in _slugs(code.open)],
            "open_table": table(
                ("feature", "computed by", "in transformers", "where"),
                [(o.feature, o.hf_class, o.source, o.where) for o in code.open],
            ),
            "manifest": json.dumps(self.manifest(), indent=2),
            **{part: getattr(code, part) for part in ("config_py", "model_py", "factory_py")},
        }

    def manifest(self) -> dict[str, Any]:
        """The package's ``onboard.json``."""
        return {
            "model": self.origin.label,
            "model_type": self.origin.facts.model_type,
            "architecture": self.code.architecture,
            "given": self.origin.given,
            "open": [
                {"feature": o.feature, "hf_class": o.hf_class, "source": o.source, "where": o.where}
                for o in self.code.open
            ],
            "onboard_version": __version__,
        }


def _refuse_clashes(text: str, names: Names) -> None:
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise RunError("rendered code", str(error), "Python", "This is a fault of the renderer; report it.") from error
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    clashes = sorted(imported.intersection(node.name for node in body if isinstance(node, ast.ClassDef)))
    if clashes:
        expected = f"a name whose classes are called unlike what the code imports ({', '.join(clashes)})"
        raise ConfigError("NAME", names.typed, expected, f"Try '{names.package}_model'.")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table whose cells are text and nothing else."""
    lines = [head, tuple("---" for _ in head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_|\[\]<>&])", lambda m: {"<": "&lt;", ">": "&gt;", "&": "&amp;"}.get(m[1], "\\" + m[1]), flat)


def _slugs(features: Iterable[OpenFeature]) -> Iterable[tuple[str, OpenFeature]]:
    """Each feature with a name for its test, no two alike."""
    seen: set[str] = set()
    for feature in features:
        base = slug = re.sub(r"[^a-z0-9]+", "_", feature.feature.lower()).strip("_") or "feature"
        count = 1
        while slug in seen:
            count += 1
            slug = f"{base}_{count}"
        seen.add(slug)
        yield slug, feature


def _hint(feature: OpenFeature) -> str:
    place = " in ".join(part for part in (feature.hf_class, feature.source) if part)
    return ": see " + re.sub(r"[^A-Za-z0-9_./ ]+", " ", place) if place else ""
