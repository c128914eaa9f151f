"""Architecture facts of well-known models, bundled: one small JSON file a model, in our own schema.

``fields`` holds values under the config's own spelling, exactly those that decide the architecture; null means written
as null. Lists that repeat are stored as ``{"repeat": [...], "length": n}`` or ``{"runs": [[value, count], ...]}``.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.arch.spec import Tower
from vllm_neuron.errors import ConfigError, nearest

DATA = Path(__file__).parent / "data"
SCHEMA = 1
CONFIDENCE = ("verbatim", "near-verbatim", "dump", "trimmed", "reconstructed")
KEYS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "name": (str,),
    "model_type": (str,),
    "architectures": (list,),
    "section": (str,),
    "confidence": (str,),
    "note": (str,),
    "remote_code": (bool,),
    "quantization": (str, type(None)),
    "fields": (dict,),
    "missing": (list,),
    "towers": (list,),
}


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        name: the model's id.
        model_type: family of its decoder.
        architectures: class names.
        section: dotted path of the decoder's section in the original config.
        confidence: how sure its source is; one of ``CONFIDENCE``: a config as published (verbatim), with a small
            correction (near-verbatim), as re-saved by transformers (dump), with keys left out (trimmed), or put
            together from other descriptions (reconstructed).
        note: what the confidence means here.
        remote_code: the repository has code of its own for this model (never executed).
        quantization: how the checkpoint's weights are stored ("fp8", "mxfp4"), None: not quantised.
        fields: values under the config's own spelling.
        missing: keys that the source lacks and that the family's defaults stand in for; may differ from the original.
        towers: other parts, with parameters where they are known.
    """

    name: str
    model_type: str
    architectures: tuple[str, ...]
    section: str
    confidence: str
    note: str
    remote_code: bool
    quantization: str | None
    fields: dict[str, Any]
    missing: tuple[str, ...]
    towers: tuple[Tower, ...]


def names() -> list[str]:
    """All names, sorted."""
    return sorted(path.name.removesuffix(".json").replace("--", "/", 1) for path in DATA.glob("*.json"))


def find(model: str) -> str | None:
    """The catalog's spelling of a name, whatever its case; None if it is not there."""
    known = names()
    return model if model in known else next((n for n in known if n.lower() == model.lower()), None)


def suggest(model: str) -> list[str]:
    """Up to three names that are close, with or without the organisation."""
    known = {n.lower(): n for n in names()} | {n.lower().split("/")[-1]: n for n in names()}
    close = difflib.get_close_matches(model.lower().split("/")[-1], known, n=6, cutoff=0.7)
    close += difflib.get_close_matches(model.lower(), known, n=6, cutoff=0.7)
    return list(dict.fromkeys(known[c] for c in close))[:3]


def _file(model: str) -> Path:
    return DATA / (model.replace("/", "--") + ".json")


def entry(name: str) -> Entry:
    """One entry.

    Raises:
        ConfigError: no such name (with near ones), or a file that does not fit the schema.
    """
    known = find(name)
    if known is None:
        close = suggest(name)
        hint = f"Did you mean {' or '.join(close)}?" if close else "See `onboard catalog list`."
        raise ConfigError("model", name, "a name in the catalog", hint)
    return parse(json.loads(_file(known).read_text(encoding="utf-8")), known)


def parse(raw: Any, name: str) -> Entry:
    """An entry from its JSON, strictly.

    Raises:
        ConfigError: an unknown or missing key, a wrong type, another schema or confidence.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"catalog {name}", type(raw).__name__, "an object")
    for key in raw:
        if key not in KEYS:
            raise ConfigError(f"catalog {name}: {key}", raw[key], "a key of the schema", nearest(key, KEYS))
    for key, kinds in KEYS.items():
        if key not in raw or type(raw[key]) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"catalog {name}: {key}", raw.get(key), f"a value of type {expected}")
    if raw["schema"] != SCHEMA or raw["confidence"] not in CONFIDENCE:
        raise ConfigError(f"catalog {name}: confidence", raw["confidence"], "one of " + ", ".join(CONFIDENCE))
    return Entry(
        name=raw["name"],
        model_type=raw["model_type"],
        architectures=tuple(raw["architectures"]),
        section=raw["section"],
        confidence=raw["confidence"],
        note=raw["note"],
        remote_code=raw["remote_code"],
        quantization=raw["quantization"],
        fields={key: expand(value) for key, value in raw["fields"].items()},
        missing=tuple(raw["missing"]),
        towers=tuple(Tower(**tower) for tower in raw["towers"]),
    )


def expand(value: Any) -> Any:
    """A value with its repeating list written out."""
    if isinstance(value, dict) and set(value) == {"repeat", "length"}:
        pattern, length = value["repeat"], value["length"]
        return [pattern[i % len(pattern)] for i in range(length)]
    if isinstance(value, dict) and set(value) == {"runs"}:
        return [item for item, count in value["runs"] for _ in range(count)]
    return value


def compact(value: Any) -> Any:
    """The inverse of :func:`expand`: the shortest of the three forms."""
    if not isinstance(value, list) or len(value) < 9 or any(isinstance(x, (list, dict)) for x in value):
        return value
    for period in range(1, 13):
        if all(value[i] == value[i % period] for i in range(len(value))):
            return {"repeat": value[:period], "length": len(value)}
    runs: list[list[Any]] = []
    for item in value:
        if runs and runs[-1][0] == item:
            runs[-1][1] += 1
        else:
            runs.append([item, 1])
    return {"runs": runs} if len(runs) * 2 < len(value) else value
