"""Vision and audio parts: what a config states of them, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onboard.arch.spec import Tower
from onboard.facts.sections import TOWERS
from onboard.facts.spellings import SPELLINGS

WIDTHS = (*SPELLINGS["hidden_size"], "width")
DEPTHS = (*SPELLINGS["num_hidden_layers"], "depth", "num_layers")


def read(raw: Mapping[str, Any]) -> tuple[Tower, ...]:
    """The towers that the config has a section for, outside and inside of nested ones; their parameters are unknown."""
    out: list[Tower] = []
    level: list[Mapping[str, Any]] = [raw]
    while level:
        section = level.pop()
        for key, value in section.items():
            if key in TOWERS and isinstance(value, Mapping):
                kind = value.get("model_type")
                out.append(Tower(TOWERS[key], kind if isinstance(kind, str) else None,
                                 _size(value, WIDTHS), _size(value, DEPTHS)))  # fmt: skip
            elif isinstance(value, Mapping) and key.endswith("_config") and key not in TOWERS:
                level.append(value)
    return tuple(out)


def _size(section: Mapping[str, Any], spellings: tuple[str, ...]) -> int | None:
    for key in spellings:
        value = section.get(key)
        if type(value) is int and value > 0:
            return value
    return None
