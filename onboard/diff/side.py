"""One model of a diff, with the numbers that follow from its architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onboard.arch import count
from onboard.diff.labels import Labels, runs
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
    unread = tuple(f"not understood: {key}" for key in facts.unknown_keys)
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
        kv_bytes_by_kind=count.kv_bytes_by_kind(arch),
        state_bytes=count.state_bytes(arch),
        flops_per_token=count.flops_per_token(arch),
        confidence=facts.confidence,
        notes=facts.notes,
        warnings=facts.warnings + unread,
        structure=structure,
    )
