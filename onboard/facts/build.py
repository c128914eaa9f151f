"""A decoder's section -> :class:`ArchSpec` with its sources."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onboard.arch.spec import ArchSpec, Tower
from onboard.facts import unknown
from onboard.facts.families import dense
from onboard.facts.families.storage import with_storage
from onboard.facts.families.table import FAMILIES
from onboard.facts.reader import Reader
from onboard.facts.sections import Section
from onboard.facts.spellings import SPELLINGS
from vllm_neuron.errors import ConfigError


@cache
def family_defaults() -> dict[str, dict[str, Any]]:
    """Defaults of the known families, by model type, in the modern spelling."""
    table: dict[str, dict[str, Any]] = {}
    for name in ("defaults.json", "defaults_experts.json"):
        table |= json.loads((Path(__file__).parent / "families" / name).read_text(encoding="utf-8"))
    return table


def build(section: Section, top: Mapping[str, Any], towers: tuple[Tower, ...]) -> tuple[ArchSpec, Reader]:
    """The architecture, and the reader with the sources, notes and warnings.

    Args:
        section: the decoder's part.
        top: the whole config.
        towers: the other parts.

    Raises:
        ConfigError: a value that can't be right.
        UnsupportedError: something that no sound reading exists for.
    """
    prefix = f"{section.path}." if section.path else ""
    family = FAMILIES.get(section.model_type or "")
    if family is not None:
        r = Reader(section.text, prefix, family.model_type, family_defaults().get(family.model_type), top)
        spec = with_storage((family.build or dense.build)(r, family), family.model_type)
    else:
        class_name = section.architectures[0] if section.architectures else ""
        values, note = unknown.defaults(section.model_type)
        r = Reader(section.text, prefix, section.model_type or "", _modern(values), top)
        r.default_kind = "assumed" if note is None else "family"
        if note is not None:
            r.notes.append(note)
        family = unknown.family(section.model_type, {**values, **section.text}, class_name)
        if not r.defaults.get("hidden_act"):
            r.defaults = {"hidden_act": "silu", "rope_theta": 10000.0, **r.defaults}
        try:
            spec = with_storage((family.build or dense.build)(r, family), None)
        except ConfigError as error:
            raise unknown.not_enough(error, r, section.model_type) from None
        unknown.explain(r, section.model_type)
    return (dataclasses.replace(spec, towers=towers) if towers else spec), r


def _modern(values: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults under their modern spelling, without lists: those are as long as the default's own layers."""
    out = {k: v for k, v in values.items() if v is not None and not isinstance(v, (list, tuple))}
    for key, spellings in SPELLINGS.items():
        found = next((out[s] for s in spellings if s in out), None)
        if found is not None:
            out[key] = found
    return out
