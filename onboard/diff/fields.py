"""Which values of an architecture are compared, under which item, and what a difference touches.

One row of data for each value. ``get`` takes a layer (facets ``mixer``, ``mlp`` and ``layer``) or the whole spec (facet
``model``) and answers :data:`ABSENT` where the part that would hold the value is missing: its presence has a row of its
own, so that one missing part is one difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

CONFIG, ATTENTION, MLP, LAYER = "config.py", "model.py attention", "model.py MLP", "model.py layer"
MODEL, TABLE, KV, ROTARY = "model.py embedding and head", "checkpoint table", "KV spec", "rotary table"


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass(frozen=True)
class Field:
    """One compared value.

    Attributes:
        path: its name in rows and in the coverage table.
        item: which checklist item.
        facet: ``mixer``, ``mlp``, ``layer`` or ``model``: whose names say where in the model a value holds.
        get: the value, or ABSENT.
        affects: what a difference touches.
        kind: ``semantic`` or ``size``.
        presence: only whether there is a value is compared; the value itself has its own fields.
        sources: paths in ``ModelFacts.sources`` that decide it; ``path`` by default.
    """

    path: str
    item: str
    facet: str
    get: Callable[[Any], Any]
    affects: tuple[str, ...]
    kind: str = "semantic"
    presence: bool = False
    sources: tuple[str, ...] = ()


def dig(*names: str) -> Callable[[Any], Any]:
    """A getter of a nested value; ABSENT as soon as a part on the way is None."""

    def get(value: Any) -> Any:
        for name in names[:-1]:
            value = getattr(value, name)
            if value is None:
                return ABSENT
        return getattr(value, names[-1])

    return get


def inner(
    cls: type,
    at: tuple[str, ...],
    *,
    path: str,
    item: str,
    facet: str,
    affects: tuple[str, ...],
    sizes: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
) -> tuple[Field, ...]:
    """A field for each field of the dataclass ``cls`` that sits at ``at``; those in ``sizes`` are sizes."""
    return tuple(
        Field(f"{path}.{f.name}", item, facet, dig(*at, f.name), affects, "size" if f.name in sizes else "semantic")
        for f in dataclasses.fields(cls)
        if f.name not in skip
    )
