"""The numbers of a model in the order that all views show them."""

from __future__ import annotations

from collections.abc import Sequence

from onboard.diff.rows import Row, Side
from onboard.diff.show import binary, count, text
from onboard.report import layer_map


def costs(sides: Sequence[Side]) -> list[tuple[str, list[str]]]:
    """Parameters, cache and work of a token: ``(name, one value for each side)``."""
    rows = [
        ("layers", [layer_map.counts(s) for s in sides]),
        ("parameters", [count(s.params_total) for s in sides]),
        ("active for a token", [count(s.params_active) for s in sides]),
    ]
    if any(s.params_towers != 0 for s in sides):
        rows.append(("towers' parameters", [count(s.params_towers) for s in sides]))
    rows.append(("KV bytes a token", [binary(s.kv_bytes_per_token) for s in sides]))
    kinds = list(dict.fromkeys(kind for s in sides for kind in s.kv_bytes_by_kind))
    if len(kinds) > 1:
        for kind in kinds:
            rows.append((f"  in {kind}", [binary(s.kv_bytes_by_kind.get(kind, 0)) for s in sides]))
    if any(s.state_bytes for s in sides):
        rows.append(("state, a sequence", [binary(s.state_bytes) for s in sides]))
    rows.append(("FLOPs a token", [count(s.flops_per_token) for s in sides]))
    return rows


def size_rows(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Rows of kind ``size`` as ``(field, values of both sides)``; the count of layers has a better one of its own."""
    return [(row.field, [text(row.a), text(row.b)]) for row in rows if row.field != "layers"]
