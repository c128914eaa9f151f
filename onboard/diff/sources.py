"""Where the two values of a row came from, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onboard.diff.fields import Field
from onboard.facts.api import ModelFacts


def source_text(facts: ModelFacts, paths: Sequence[str]) -> str:
    """The recorded sources of any of ``paths``, each once; a path without a record falls back to the part it is in.

    What no key of a config decides is the family's: the code that knows the ``model_type`` put it there (``assumed``
    where the type is not known).

    A source that holds for one kind of layer only is marked, e.g. ``explicit (rope_theta); sliding: family``.
    """
    found: dict[str, None] = {}
    for path in paths:
        for text in _records(facts, path):
            found[text] = None
    if found:
        return "; ".join(found)
    return "assumed" if any(source.kind == "assumed" for source in facts.sources.values()) else "family"


def source_of(facts: ModelFacts, field: Field) -> str:
    """The recorded source of a compared value."""
    paths = field.sources or (field.path,)
    if field.path == "attention.query_growth" and _grows_by_rope(facts):
        paths = ("attention.positions.scaling",)
    return source_text(facts, paths)


def _grows_by_rope(facts: ModelFacts) -> bool:
    scalings = (kind.attention.positions.scaling for kind in facts.arch.kinds if kind.attention)
    return any(scaling is not None and scaling.query_beta is not None for scaling in scalings)


def _records(facts: ModelFacts, path: str) -> list[str]:
    while path:
        here = [str(facts.sources[path])] if path in facts.sources else []
        here += [f"{key.split('@', 1)[1]}: {s}" for key, s in facts.sources.items() if key.startswith(path + "@")]
        if here:
            return here
        path = path.rpartition(".")[0]
    return []


def quantization_source(facts: ModelFacts) -> str:
    """Which key says how the weights are stored; a catalog entry keeps what that key said."""
    if facts.quantization is None:
        return "derived (no quantization_config)"
    if facts.quantization == "unnamed":
        return "explicit (quantization_config)"
    own = facts.text.get("quantization_config")
    top = facts.raw.get("quantization_config")
    inside = facts.section if own and not top else ""
    block = top or own
    key = "quant_algo" if isinstance(block, Mapping) and not block.get("quant_method") else "quant_method"
    return f"explicit ({inside + '.' if inside else ''}quantization_config.{key})"
