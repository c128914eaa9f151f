"""What a diff is made of: rows, the two sides, and the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ITEMS = (
    "attention",
    "heterogeneous layers",
    "position encoding",
    "MLP and activation",
    "normalisation",
    "config structure",
    "embedding",
    "special features",
)
KINDS = ("semantic", "size", "spelling")


@dataclass(frozen=True)
class Row:
    """One thing that differs.

    Attributes:
        item: which of the eight items of the porting checklist (:data:`ITEMS`).
        field: dotted path in the architecture, e.g. ``attention.window``.
        kind: ``semantic`` (code or options change), ``size`` (a number in a config changes) or ``spelling`` (the same
            architecture, written in another way).
        a, b: the values as JSON scalars; an object of layer kind -> value where the layers of a model differ.
        a_source, b_source: where each value came from, e.g. ``explicit (text_config.sliding_window)``; None: no record.
        affects: what a port has to touch, e.g. ``config.py``, ``KV spec``.
        covered_by: the call of the building block that expresses the target's value, or None.
        missing: what has to be written where no block covers it, else None.
        goes_with: the field of the counted row that this one is a part of; None: it is counted itself.
    """

    item: str
    field: str
    kind: str
    a: Any
    b: Any
    a_source: str | None = None
    b_source: str | None = None
    affects: tuple[str, ...] = ()
    covered_by: str | None = None
    missing: str | None = None
    goes_with: str | None = None

    @property
    def counts(self) -> bool:
        """Whether the summary counts it: a semantic row that is no part of another one."""
        return self.kind == "semantic" and self.goes_with is None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, every key present."""
        return {
            "item": self.item,
            "field": self.field,
            "kind": self.kind,
            "a": self.a,
            "b": self.b,
            "a_source": self.a_source,
            "b_source": self.b_source,
            "affects": list(self.affects),
            "covered_by": self.covered_by,
            "missing": self.missing,
            "goes_with": self.goes_with,
        }


@dataclass(frozen=True)
class Side:
    """One model of a diff, with what follows from its architecture.

    Attributes:
        name, origin, location, model_type, architectures, section: as in ``ModelFacts``.
        layers: runs of layers of one kind in order, ``(count, kind)``.
        params_total, params_active, params_embedding: of the language model.
        params_towers: of vision and audio towers; None: unknown.
        kv_bytes_per_token: bf16 cache bytes that one more token adds while every window is still filling.
        kv_bytes_by_kind: the same, for each kind of mixer.
        state_bytes: recurrent state of one sequence, whatever its length.
        flops_per_token: forward FLOPs of a token without earlier context.
        confidence: how sure the catalog's source is, else None.
        notes, warnings: as in ``ModelFacts``.
        structure: the module tree, when it was asked for; see :mod:`onboard.diff.structure`.
    """

    name: str
    origin: str
    location: str
    model_type: str | None
    architectures: tuple[str, ...]
    section: str
    layers: tuple[tuple[int, str], ...]
    params_total: int
    params_active: int
    params_embedding: int
    params_towers: int | None
    kv_bytes_per_token: int
    kv_bytes_by_kind: Mapping[str, int]
    state_bytes: int
    flops_per_token: int
    confidence: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    structure: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``structure`` only when it was asked for."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("architectures", "notes", "warnings"):
            out[name] = list(out[name])
        out["layers"] = [list(run) for run in self.layers]
        out["kv_bytes_by_kind"] = dict(self.kv_bytes_by_kind)
        if self.structure is None:
            del out["structure"]
        return out


@dataclass(frozen=True)
class Diff:
    """Two models side by side.

    Attributes:
        a, b: the models in the order of the call.
        rows: semantic rows by item, then sizes, then (when asked for) spelling.
        target: ``a`` or ``b``: the model to port, whose values the coverage is about; the other is the base.
        why: when the base was picked here, why this one.
    """

    a: Side
    b: Side
    rows: tuple[Row, ...]
    target: str = "b"
    why: str | None = None

    @property
    def base_side(self) -> Side:
        """The model that is known already."""
        return self.a if self.target == "b" else self.b

    @property
    def target_side(self) -> Side:
        """The model to port."""
        return self.b if self.target == "b" else self.a

    def of_kind(self, kind: str) -> tuple[Row, ...]:
        """The rows of one of :data:`KINDS`."""
        return tuple(row for row in self.rows if row.kind == kind)

    @property
    def counted(self) -> tuple[Row, ...]:
        """The semantic rows that the summary counts."""
        return tuple(row for row in self.rows if row.counts)

    @property
    def differs(self) -> bool:
        """Whether there is a semantic difference or one of size."""
        return any(row.kind != "spelling" for row in self.rows)

    @property
    def sentence(self) -> str:
        """The planner's line: how many differences, how many covered, how many to write."""
        semantic = self.counted
        names = f"{self.target_side.name} against {self.base_side.name}"
        sizes = len(self.of_kind("size"))
        tail = f"; {_count(sizes, 'size differs', 'sizes differ')}" if sizes else ""
        if not semantic:
            return f"{names}: no semantic difference{tail}"
        covered = sum(row.missing is None for row in semantic)
        head = _count(len(semantic), "difference", "differences")
        return f"{names}: {head}, {covered} covered by building blocks, {len(semantic) - covered} to write{tail}"

    def summary(self) -> dict[str, Any]:
        """The numbers that a planner needs, as JSON values."""
        semantic = self.counted
        covered = sum(row.missing is None for row in semantic)
        return {
            "text": self.sentence,
            "target": self.target,
            "why": self.why,
            "differences": len(semantic),
            "covered": covered,
            "to_write": len(semantic) - covered,
            "sizes": len(self.of_kind("size")),
            "spelling": len(self.of_kind("spelling")),
            "by_item": {item: sum(row.item == item for row in semantic) for item in ITEMS},
            "params_total": {"a": self.a.params_total, "b": self.b.params_total},
            "params_active": {"a": self.a.params_active, "b": self.b.params_active},
            "kv_bytes_per_token": {"a": self.a.kv_bytes_per_token, "b": self.b.kv_bytes_per_token},
            "kv_bytes_by_kind": {"a": dict(self.a.kv_bytes_by_kind), "b": dict(self.b.kv_bytes_by_kind)},
        }

    def to_json(self) -> dict[str, Any]:
        """The published shape (``diff.schema.json``)."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "rows": [row.to_json() for row in self.rows],
            "summary": self.summary(),
        }


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
