"""Where a value came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where one value came from.

    ``kind``: ``explicit`` (written in the config), ``null`` (written as null, so the family's rule decides),
    ``family`` (the family's default, not in the config), ``derived`` (computed from other values) or ``assumed``
    (nothing says it; only for a model type that is not known). ``key``: the raw key that was read or would decide,
    dotted from the top of the config; None for knowledge that no key carries.
    """

    kind: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})" if self.key else self.kind
