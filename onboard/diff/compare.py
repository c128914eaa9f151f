"""Two models' facts -> the rows that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onboard.arch.blocks import Norm, QKNorm
from onboard.arch.spec import ArchSpec, Beyond
from onboard.diff.coverage import Rule, cover, detail_of
from onboard.diff.fields import ABSENT, CONFIG, KV, LAYER, TABLE, Field
from onboard.diff.grouping import group
from onboard.diff.labels import SOFTMAX, Labels, by_label, pattern, pattern_text
from onboard.diff.rows import ITEMS, Diff, Row
from onboard.diff.rules import RULES, layer_norm
from onboard.diff.rules_attention import latent
from onboard.diff.rules_mlp import PLAIN
from onboard.diff.rules_moe import EXPERTS_ALONE
from onboard.diff.rules_positions import SINUSOIDAL
from onboard.diff.show import jsonable
from onboard.diff.side import side
from onboard.diff.sources import quantization_source, source_of
from onboard.diff.table import BY_LAYER, FIELDS, mixers
from onboard.facts.api import ModelFacts

SIZE_ROW = "a value in the config"
NOTHING = "wiring: nothing to do, the part is not there"


class Model:
    """One model's facts with the names of its kinds of layers."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.arch: ArchSpec = facts.arch
        self.labels = Labels(facts.arch)

    def value(self, field: Field) -> Any:
        """The field's value: one, an object by kind of layer, or ABSENT."""
        if field.facet == "model":
            return field.get(self.arch)
        kinds = self.arch.kinds
        return by_label(self.arch, self.labels.columns(field.facet), lambda k: field.get(kinds[k]), ABSENT)

    def present(self, field: Field) -> Any:
        """The first part that the field finds, None, or ABSENT when what would hold it is missing everywhere."""
        if field.facet == "model":
            return field.get(self.arch)
        found = [part for kind in self.arch.kinds if (part := field.get(kind)) is not ABSENT]
        return next((part for part in found if part is not None), None) if found else ABSENT

    def sequence(self) -> list[str]:
        """The name of every layer's kind, in order."""
        return [self.labels.whole[k] for k in self.arch.layer_kinds]

    @property
    def only_foreign_attention(self) -> bool:
        """Whether no layer has softmax attention over keys and values, which is all that the Attention block does."""
        kinds = [k.attention.kind for k in self.arch.kinds if k.attention]
        return bool(kinds) and not any(kind in SOFTMAX for kind in kinds)

    @property
    def only_latent_attention(self) -> bool:
        """Whether all attention of the model is latent."""
        kinds = {k.attention.kind for k in self.arch.kinds if k.attention}
        return kinds == {"mla"}

    @property
    def only_experts(self) -> bool:
        """Whether every feed-forward block of the model is a mixture of experts."""
        return any(k.moe for k in self.arch.kinds) and not any(k.mlp for k in self.arch.kinds)

    @property
    def rules(self) -> dict[str, Rule]:
        """The coverage table, with the rows that name another block where the model has that one."""
        table = RULES | EXPERTS_ALONE if self.only_experts else RULES
        dense = [kind.mlp for kind in self.arch.kinds if kind.mlp]
        if dense and not any(mlp.gated for mlp in dense):
            table = table | PLAIN
        norm = self.arch.final_norm
        if norm is not None and norm.kind == "layernorm":
            table = table | layer_norm(norm)
        added = self.arch.embedding.positions
        return table | SINUSOIDAL if added is not None and added.kind == "sinusoidal" else table


class Comparison:
    """The rows of one pair, collected field by field."""

    def __init__(self, a: ModelFacts, b: ModelFacts, target: str) -> None:
        self.a, self.b = Model(a), Model(b)
        self.target = self.b if target == "b" else self.a
        self.target_name = target
        self.rows: list[Row] = []

    def add(self, field: Field, a: Any, b: Any, path: str | None = None, item: str | None = None) -> None:
        """One row; the target's value decides the coverage."""
        path = path or field.path
        value = self._without_absent(b if self.target_name == "b" else a)
        covered, missing, part = (SIZE_ROW, None, None) if field.kind == "size" else self._cover(path, value)
        self.rows.append(
            Row(
                item or field.item,
                path,
                field.kind,
                jsonable(self._without_absent(a)),
                jsonable(self._without_absent(b)),
                source_of(self.a.facts, field),
                source_of(self.b.facts, field),
                _touched(field, a, b),
                covered,
                missing,
                part,
            )
        )

    def _cover(self, path: str, value: Any) -> tuple[str | None, str | None, str | None]:
        """What covers the value, what is missing, and the path of the block to write that it is a detail of."""
        covered, missing = cover(path, value, self.target.rules)
        if covered and covered.startswith("Attention(") and self.target.only_latent_attention:
            if value in (None, False, "none"):
                return NOTHING, None, detail_of(path, RULES)
            covered, missing = latent(path, covered, value)
        owner = self._foreign_owner(path, covered or "")
        if owner is None:
            return covered, missing, detail_of(path, RULES)
        part, name = owner
        if value in (None, False, "none"):
            return NOTHING, None, part
        return None, f"goes with {name}", part

    def _foreign_owner(self, path: str, covered: str) -> tuple[str, str] | None:
        """Path and name of what the target has in place of the block that ``covered`` calls; None when it has that."""
        target = self.target
        if covered.startswith("Attention(") and target.only_foreign_attention:
            return "mixer", f"the mixer to write ({mixers(target.arch)})"
        return None

    @staticmethod
    def _without_absent(value: Any) -> Any:
        return None if value is ABSENT else value

    def fields(self) -> None:
        """Every field of the table."""
        for field in FIELDS:
            if field.presence:
                a, b = self.a.present(field), self.b.present(field)
                if ABSENT not in (a, b) and (a is None) != (b is None):
                    self.add(field, a, b)
                continue
            a, b = self.a.value(field), self.b.value(field)
            if a is ABSENT or b is ABSENT or a == b:
                continue
            if field.path in BY_LAYER and _keys(a) != _keys(b):
                cached = (KV,) if field.path in ("attention.kv_heads", "attention.head_size_k") else ()
                by_layer = Field(field.path, "heterogeneous layers", "layer", field.get, (CONFIG, LAYER, *cached))
                self.add(by_layer, a, b, BY_LAYER[field.path])
            else:
                self.add(field, a, b)

    def layers(self) -> None:
        """The mixers, and the pattern that the kinds of layers form."""
        a, b = mixers(self.a.arch), mixers(self.b.arch)
        if a != b:
            touched = ("model.py attention", TABLE, KV)
            self.add(Field("mixer", "attention", "layer", mixers, touched, sources=("layers.kinds",)), a, b)
        a_layers, b_layers = self.a.sequence(), self.b.sequence()
        if pattern(a_layers) != pattern(b_layers):
            a, b = pattern_text(a_layers), pattern_text(b_layers)
            if a != b:
                touched = (CONFIG, LAYER, KV)
                sources = ("layers.kinds", "layers.moe", "layers.rope")
                self.add(
                    Field("layers.pattern", "heterogeneous layers", "layer", mixers, touched, sources=sources), a, b
                )

    def config(self) -> None:
        """Where the settings sit, and how the weights are stored."""
        a, b = (m.facts.section or "top" for m in (self.a, self.b))
        if a != b:
            same = not self.rows
            self.add(Field("config.section", "config structure", "model", mixers, (CONFIG, TABLE)), a, b)
            if same:
                self.rows[-1] = Row("config structure", "config.section", "spelling", a, b)
        quantised = [m.facts.quantization for m in (self.a, self.b)]
        if quantised[0] != quantised[1]:
            field = Field("quantization", "special features", "model", mixers, ("neuron_config", TABLE))
            self.add(field, *(one or "none" for one in quantised))
            a_source, b_source = (quantization_source(m.facts) for m in (self.a, self.b))
            self.rows[-1] = replace(self.rows[-1], a_source=a_source, b_source=b_source)

    def beyond(self) -> None:
        """A row for each feature that no field of the architecture can say."""
        a, b = ({one.feature: place(one) for one in m.arch.beyond} for m in (self.a, self.b))
        for feature in dict.fromkeys((*a, *b)):
            if a.get(feature) == b.get(feature):
                continue
            wanted = (b if self.target_name == "b" else a).get(feature)
            missing = None if wanted is None else f"{feature}, by hand: in the reference it is {wanted}"
            self.rows.append(
                Row(
                    "special features",
                    f"beyond.{feature}",
                    "semantic",
                    a.get(feature),
                    b.get(feature),
                    "family",
                    "family",
                    ("model.py",),
                    NOTHING if missing is None else None,
                    missing,
                )
            )

    def spelling(self) -> None:
        """Names, and keys that hold the same value under another spelling."""
        told = {row.field for row in self.rows}
        for name in ("model_type", "architectures"):
            a, b = (jsonable(getattr(m.facts, name)) for m in (self.a, self.b))
            if a != b:
                self.rows.append(Row("config structure", f"config.{name}", "spelling", a, b))
        a_sources, b_sources = self.a.facts.sources, self.b.facts.sources
        for path in sorted(set(a_sources) & set(b_sources) - told):
            a, b = str(a_sources[path]), str(b_sources[path])
            if a != b:
                self.rows.append(Row("config structure", path, "spelling", a, b))


def _has_weight(part: Any) -> bool:
    """Whether a norm, or one of the two of a QKNorm, has parameters in the checkpoint."""
    norms = (part.norm, part.query_norm) if isinstance(part, QKNorm) else (part,)
    return any(isinstance(norm, Norm) and (norm.weight or norm.bias) for norm in norms)


def place(one: Beyond) -> str:
    """The class that does it, and on which layers."""
    return f"{one.hf_class} ({one.where})" if one.where else one.hf_class


def _touched(field: Field, *values: Any) -> tuple[str, ...]:
    """What the difference touches: a norm without weights on both sides has no row in the checkpoint table."""
    if field.path not in ("attention.qk_norm", "attention.v_norm", "attention.out_norm", "embedding.norm"):
        return field.affects
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else (value,))]
    stored = any(_has_weight(part) for part in parts)
    return field.affects if stored else tuple(one for one in field.affects if one != TABLE)


def _keys(value: Any) -> Any:
    return frozenset(value) if isinstance(value, Mapping) else None


def diff(
    a: ModelFacts,
    b: ModelFacts,
    *,
    target: str = "b",
    spelling: bool = False,
    why: str | None = None,
    structures: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None),
) -> Diff:
    """What differs between two models.

    Args:
        a, b: the models.
        target: ``a`` or ``b``: the one to port; coverage is about its values.
        spelling: also list values that are the same and only written in another way.
        why: why the base was picked, when the caller did not name it.
        structures: the two module trees, when they were asked for.
    """
    pair = Comparison(a, b, target)
    pair.layers()
    pair.fields()
    pair.beyond()
    pair.config()
    if spelling:
        pair.spelling()
    else:
        pair.rows = [row for row in pair.rows if row.kind != "spelling"]
    order = {"semantic": 0, "size": 1, "spelling": 2}
    rows = group(sorted(pair.rows, key=lambda row: (order[row.kind], ITEMS.index(row.item))))
    return Diff(side(a, structures[0]), side(b, structures[1]), tuple(rows), target, why)
