"""Which rows only tell more of another row, so that one thing to write and one covered fact count once each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onboard.diff.rows import Row

# Field -> the fields of which it is a part, the first that has a row decides.
PARTS = {
    "attention.width": ("layers.head_size_k", "layers.heads"),
    "attention.sharing": ("layers.kv_heads", "layers.heads"),
    "layer.parallel": ("norms.places",),
    "layer.shared_norm": ("norms.places",),
    "layer.per_layer_input": ("per_layer_input",),
}


def group(rows: Sequence[Row]) -> list[Row]:
    """``rows`` with ``goes_with`` settled: the field of a counted row of the same list, or None for what counts itself.

    On the way in, ``goes_with`` is the path of the block that a row is a detail of, whether that has a row or not.
    Where it has none (both models have the block), the first of its details to write stands for it. A row to write
    never goes with a covered one: the work would be lost.
    """
    leaders = {row.field: row for row in rows if row.kind == "semantic" and not row.goes_with}
    for row in rows:
        if row.goes_with and row.missing is not None:
            leaders.setdefault(row.goes_with, row)
    return [replace(row, goes_with=_leader(row, leaders)) for row in rows]


def _leader(row: Row, leaders: dict[str, Row]) -> str | None:
    if row.kind != "semantic":
        return None
    for path in (row.goes_with, *PARTS.get(row.field, ())):
        leader = leaders.get(path) if path else None
        if leader is not None and leader.field != row.field and (leader.missing is not None or row.missing is None):
            return leader.field
    return None
