"""Where the two values of a row came from, as text."""

from __future__ import annotations

from collections.abc import Sequence

from onboard.facts.api import ModelFacts


def source_text(facts: ModelFacts, paths: Sequence[str]) -> str | None:
    """The recorded sources of any of ``paths``, each once; a path without a record falls back to the part it is in.

    A source that holds for one kind of layer only is marked, e.g. ``explicit (rope_theta); sliding: family``.
    """
    found: dict[str, None] = {}
    for path in paths:
        for text in _records(facts, path):
            found[text] = None
    return "; ".join(found) or None


def _records(facts: ModelFacts, path: str) -> list[str]:
    while path:
        here = [str(facts.sources[path])] if path in facts.sources else []
        here += [f"{key.split('@', 1)[1]}: {s}" for key, s in facts.sources.items() if key.startswith(path + "@")]
        if here:
            return here
        path = path.rpartition(".")[0]
    return []
