"""Which layers turn queries and keys, and how."""

from __future__ import annotations

from onboard.arch.blocks import Positions
from onboard.facts import rope
from onboard.facts.families.family import Family
from onboard.facts.families.windows import SLIDING
from onboard.facts.reader import Reader

NOPE_ON_FULL = ("cohere2", "exaone4")
NOPE_BY_LIST = ("smollm3", "llama4_text")


def layers_with_rope(r: Reader, family: Family, types: list[str]) -> list[bool]:
    """Per layer, whether rope is used.

    In Llama 4 and SmolLM 3, the list ``no_rope_layers`` holds 1 where rope IS used; empty or absent, every
    ``no_rope_layer_interval``-th layer goes without. Cohere 2 and EXAONE 4 go without on full layers as soon as there
    are sliding ones.
    """
    n = len(types)
    if family.positions != "rotary":
        return [False] * n
    if family.nope:
        return [t not in family.nope for t in types]
    if family.model_type in NOPE_ON_FULL and SLIDING in types:
        r.known("attention.positions.kind")
        return [t == SLIDING for t in types]
    if family.model_type not in NOPE_BY_LIST and r.default_kind != "assumed":
        r.known("attention.positions.kind")
        return [True] * n
    given = r.maybe_list("no_rope_layers", int, "attention.positions.kind")
    interval = r.maybe_integer("no_rope_layer_interval", "attention.positions.kind")
    if given:
        if len(given) != n or any(x not in (0, 1) for x in given):
            raise r.wrong("no_rope_layers", given, f"0 or 1 for each of {n} layers")
        return [bool(x) for x in given]
    if interval is None:
        r.known("attention.positions.kind")
        return [True] * n
    return [(i + 1) % interval != 0 for i in range(n)]


def positions(r: Reader, family: Family, size: int, layer_type: str, turned: bool) -> Positions:
    """The positions of one kind of layer."""
    if family.positions == "alibi":
        return Positions("alibi")
    if not turned:
        return Positions("none")
    r.known("attention.positions.interleaved")
    unscaled = family.unscaled_sliding and layer_type == SLIDING
    return rope.rotary(r, size, layer_type=layer_type, interleaved=family.interleaved, unscaled=unscaled)
