"""All compared fields in one table, completed so that no field of an architecture can be overlooked."""

from __future__ import annotations

import dataclasses
from typing import Any

from onboard.arch.blocks import Attention, Layer
from onboard.arch.spec import ArchSpec, Embedding, Head
from onboard.diff import fields_attention, fields_model
from onboard.diff.fields import ATTENTION, CONFIG, TABLE, Field, dig

# Sizes whose differing between kinds of layers is a difference of its own, and the path of that row.
BY_LAYER = {
    "attention.heads": "layers.heads",
    "attention.kv_heads": "layers.kv_heads",
    "attention.head_size_k": "layers.head_size_k",
    "mlp.size": "layers.mlp_size",
}
# Fields of a dataclass that a row expresses under another path.
ELSEWHERE = {
    Attention: {
        "kind",
        "positions",
        "latent",
        "compressor",
        "q_bias",
        "k_bias",
        "v_bias",
        "o_bias",
        "query_growth_floor",
        "query_growth_beta",
    },
    Layer: {"attention", "state", "mlp", "moe", "norms"},
    Embedding: {"positions"},
    Head: set[str](),
    ArchSpec: {"embedding", "kinds", "layer_kinds", "head", "beyond"},
}
_BEFORE = (
    *fields_attention.FIELDS,
    *fields_attention.POSITION_FIELDS,
    *fields_model.FEED_FORWARD,
    *fields_model.NORMS,
    *fields_model.WHOLE,
    *fields_model.LAYERS,
    *fields_attention.STATE_FIELDS,
)


def _rest(cls: type, path: str, item: str, facet: str, at: tuple[str, ...], affects: tuple[str, ...]) -> list[Field]:
    known = {field.path for field in _BEFORE} | {f"{path}{name}" for name in ELSEWHERE[cls]}
    return [
        Field(path + f.name, item, facet, dig(*at, f.name), affects)
        for f in dataclasses.fields(cls)
        if path + f.name not in known
    ]


FIELDS: tuple[Field, ...] = (
    *_BEFORE,
    *_rest(Attention, "attention.", "attention", "mixer", ("attention",), (ATTENTION, TABLE)),
    *_rest(Layer, "layer.", "special features", "layer", (), ("model.py layer", TABLE)),
    *_rest(Embedding, "embedding.", "embedding", "model", ("embedding",), ("model.py", TABLE)),
    *_rest(Head, "head.", "embedding", "model", ("head",), ("model.py", TABLE)),
    *_rest(ArchSpec, "", "special features", "model", (), (CONFIG, "model.py")),
)


def mixers(arch: ArchSpec) -> str:
    """The kinds of mixers in order of first use, joined by `` + ``; windows and masks do not count."""
    found: dict[Any, None] = dict.fromkeys(fields_attention.mixer(kind) for kind in arch.kinds)
    return " + ".join(found)
