"""One model in the terms of the diff: every compared value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onboard.arch.spec import ArchSpec
from onboard.diff.compare import Model, place
from onboard.diff.fields import ABSENT
from onboard.diff.labels import pattern_text
from onboard.diff.rows import ITEMS, Side
from onboard.diff.show import jsonable
from onboard.diff.side import side
from onboard.diff.sources import quantization_source, source_of, source_text
from onboard.diff.table import FIELDS, mixers
from onboard.facts.api import ModelFacts

QUIET = (None, False, "none", 0)
# Values that nearly all models have: told only where they differ from this.
ORDINARY = {
    "attention.head_size_v": "as keys",
    "attention.positions.leading": True,
    "attention.positions.frequency_dim": "rotary width",
    "attention.positions.rotary_dim": "all",
    "norms.weight": True,
    "norms.groups": 1,
    "final_norm": True,
    "layer.residual_scale": 1.0,
    "embedding.multiplier": 1.0,
    "embedding.size": "hidden",
    "head.multiplier": 1.0,
    "moe.router.weight_on": "output",
    "moe.router.scale": 1.0,
    "moe.router.groups": 1,
    "moe.router.top_groups": 1,
}


@dataclass(frozen=True)
class Inspection:
    """One model as the views show it.

    Attributes:
        side: the model and the numbers that follow from its architecture.
        arch: the architecture.
        traits: ``(item, field, value, source)`` of every value that is compared, sizes included.
    """

    side: Side
    arch: ArchSpec
    traits: tuple[tuple[str, str, Any, str | None], ...]

    def to_json(self) -> dict[str, Any]:
        """The published shape (``inspect.schema.json``)."""
        traits = [{"item": i, "field": f, "value": v, "source": s} for i, f, v, s in self.traits]
        return {**self.side.to_json(), "arch": self.arch.to_json(), "traits": traits}

    @property
    def head(self) -> list[str]:
        """Name, classes and where it was read."""
        side = self.side
        where = f"{side.origin}: {side.location}" if side.location not in ("", side.name) else side.origin
        kind = ", ".join(side.architectures) or "no architectures"
        return [f"{kind} ({side.model_type or 'no model_type'})", f"read from {where}"]


def inspect(facts: ModelFacts, structure: Mapping[str, Any] | None = None) -> Inspection:
    """Everything that the views of one model show; parts that the model does not have are left out."""
    model = Model(facts)
    traits = [
        ("attention", "mixer", mixers(facts.arch), source_text(facts, ("layers.kinds",))),
        (
            "heterogeneous layers",
            "layers.pattern",
            pattern_text(model.sequence()),
            source_text(facts, ("layers.kinds",)),
        ),
        ("config structure", "config.section", facts.section or "top", None),
        ("special features", "quantization", facts.quantization or "none", quantization_source(facts)),
    ]
    for field in FIELDS:
        value = model.present(field) if field.presence else model.value(field)
        if (
            field.path == "mlp"
            or value is ABSENT
            or value in QUIET
            or (field.path in ORDINARY and value == ORDINARY[field.path])
        ):
            continue
        traits.append((field.item, field.path, jsonable(value), source_of(facts, field)))
    traits += [("special features", f"beyond.{one.feature}", place(one), "family") for one in facts.arch.beyond]
    traits.sort(key=lambda trait: ITEMS.index(trait[0]))
    return Inspection(side(facts, structure), facts.arch, tuple(traits))
