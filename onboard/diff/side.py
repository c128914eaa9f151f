"""One model of a diff, with the numbers that follow from its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onboard.arch import count
from onboard.arch.spec import ArchSpec
from onboard.diff.labels import Labels, idle_window, runs
from onboard.diff.rows import Side
from onboard.facts.api import ModelFacts


def side(facts: ModelFacts, structure: Mapping[str, Any] | None = None) -> Side:
    """The side of ``facts``; the structure's count of the towers stands in where the spec knows none."""
    arch = facts.arch
    labels = Labels(arch)
    params = count.params(arch)
    towers = count.params_towers(arch)
    if towers is None and structure is not None:
        towers = structure.get("params_towers")
    idle = {kind.mixer_kind: window for kind in arch.kinds if (window := idle_window(kind, arch.max_positions))}
    notes = tuple(f"the window of {w} never bites: positions end at {arch.max_positions}" for w in idle.values())
    return Side(
        name=facts.name,
        origin=facts.origin,
        location=facts.location,
        model_type=facts.model_type,
        architectures=facts.architectures,
        section=facts.section,
        layers=runs(arch, labels.whole),
        params_total=params.total,
        params_active=params.active,
        params_embedding=params.embedding,
        params_towers=towers,
        kv_bytes_per_token=count.kv_bytes_per_token(arch),
        kv_bytes_by_kind=_by_label(arch),
        state_bytes=count.state_bytes(arch),
        flops_per_token=count.flops_per_token(arch),
        confidence=facts.confidence,
        notes=facts.notes + notes,
        warnings=facts.warnings + _unread(facts),
        structure=structure,
    )


def _by_label(arch: ArchSpec) -> dict[str, int]:
    """Cache bytes by kind of mixer; a kind whose every window is idle counts as ``full``, as in the map of layers."""
    bites = {kind.mixer_kind for kind in arch.kinds if idle_window(kind, arch.max_positions) is None}
    out: dict[str, int] = {}
    kinds = {kind.mixer_kind for kind in arch.kinds}
    for name, size in count.kv_bytes_by_kind(arch).items():
        shown = "full" if name in kinds - bites else name
        out[shown] = out.get(shown, 0) + size
    return out


def _unread(facts: ModelFacts) -> tuple[str, ...]:
    """One line for all keys that no rule read and no warning names."""
    said = " ".join(line for line in facts.warnings if line.startswith("not understood: "))
    named = {name.rpartition(".")[2] for name in said.replace(",", " ").split()}
    keys = [key for key in facts.unknown_keys if key.rpartition(".")[2] not in named]
    return ("not understood: " + ", ".join(keys),) if keys else ()
