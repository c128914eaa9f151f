"""What a package is made from: a model id, a folder, a config.json or a model type; and how to read it again later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard import catalog
from onboard.facts import api, locate
from onboard.facts.api import ModelFacts
from vllm_neuron.errors import ConfigError, UnsupportedError, nearest

_MODEL_TYPE = re.compile(r"[a-z][a-z0-9_.-]*")
_ODD = re.compile(r"[^A-Za-z0-9._+/ -]+")


@dataclass(frozen=True)
class Origin:
    """A source that was read.

    Attributes:
        kind: ``catalog``, ``type`` (the defaults of a config class) or ``config``.
        label: the model's name for people; no path of the machine.
        facts: what was found in it.
        architecture: the class name that was given in place of the config's.
    """

    kind: str
    label: str
    facts: ModelFacts
    architecture: str | None = None

    @property
    def given(self) -> dict[str, Any] | None:
        """The decoder's section as written; None for a model type, whose defaults nobody wrote."""
        return None if self.kind == "type" else without_paths(self.facts.text)

    def to_json(self) -> dict[str, Any]:
        """What :func:`again` needs."""
        raw = without_paths(self.facts.raw) if self.kind == "config" else None
        return {"kind": self.kind, "label": self.label, "architecture": self.architecture, "raw": raw}


def read(source: str, architecture: str | None = None) -> Origin:
    """Read a source.

    Args:
        source: a folder, a ``config.json``, a model id, or a model type such as ``qwen3``.
        architecture: a class name that takes the place of the config's ``architectures``.

    Raises:
        ConfigError, UnsupportedError: as :func:`onboard.facts.api.load`; or no such model type.
    """
    if source.strip() and not locate.is_path(source) and "/" not in source and catalog.find(source) is None:
        return _of_type(source, architecture)
    facts = api.load(source, architecture=architecture)
    if facts.origin == "catalog":
        return Origin("catalog", label(facts.name), facts)
    named = source
    if locate.is_path(source):
        path = Path(source).expanduser().resolve()
        named = path.parent.name if path.is_file() and path.name == "config.json" else path.stem
    return Origin("config", label(named), facts, architecture)


def again(saved: Mapping[str, Any]) -> Origin:
    """Read what :meth:`Origin.to_json` saved, with the facts of today.

    Raises:
        ConfigError, UnsupportedError: as :func:`read`.
    """
    kind, name, architecture = saved["kind"], saved["label"], saved["architecture"]
    if kind == "catalog":
        return Origin("catalog", name, api.from_catalog(name))
    if kind == "type":
        return _of_type(name, architecture)
    return Origin("config", name, api.read(saved["raw"], name=name, architecture=architecture), architecture)


def _of_type(model_type: str, architecture: str | None) -> Origin:
    """The defaults of a model type's config class; its class for text, when it has parts for images or sound."""
    try:
        from transformers import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    except ImportError:
        raise UnsupportedError(
            "--from", model_type, "a model id, a folder or a config.json", "A model type needs transformers."
        ) from None
    if not _MODEL_TYPE.fullmatch(model_type) or model_type not in CONFIG_MAPPING:
        known = f"{nearest(model_type, CLASSES)} " if model_type[:3] in {name[:3] for name in CLASSES} else ""
        raise ConfigError(
            "--from", model_type, "a folder, a config.json, a model id or a model type", f"{known}Check the name."
        )
    raw = json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    known_class = CLASSES.get(model_type)
    if not raw.get("architectures") and isinstance(known_class, str):
        raw["architectures"] = [known_class]
    facts = api.read(raw, name=model_type, origin="class", location=model_type, architecture=architecture)
    return Origin("type", model_type, facts, architecture)


def label(name: str) -> str:
    """A model's name with what Markdown, TOML and docstrings could take for their own replaced."""
    return _ODD.sub("_", name).strip()[:120] or "a model"


def without_paths(value: Any) -> Any:
    """JSON values without entries that hold an absolute path, such as ``_name_or_path`` of a model trained at home."""
    if isinstance(value, Mapping):
        return {key: without_paths(each) for key, each in value.items() if not _is_path(each)}
    if isinstance(value, (list, tuple)):
        return [without_paths(each) for each in value if not _is_path(each)]
    return value


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(re.match(r"(/|~|\\\\|[A-Za-z]:[\\/]|file:)", value))
