"""Compared values of attention, of its positions and of state mixers."""

from __future__ import annotations

import dataclasses
from typing import Any

from onboard.arch.blocks import Attention, Compressor, Indexer, Latent, Layer, State
from onboard.arch.spec import ArchSpec
from onboard.diff.fields import ABSENT, ATTENTION, CONFIG, KV, ROTARY, TABLE, Field, dig, inner
from onboard.diff.labels import SOFTMAX
from onboard.diff.show import describe

ITEM, POSITIONS = "attention", "position encoding"


def mixer(layer: Layer) -> str:
    """The kind of mixer, with all windows and masks of softmax attention as one kind."""
    return "attention" if layer.mixer_kind in SOFTMAX else layer.mixer_kind


def sharing(layer: Layer) -> Any:
    """Whether query heads share KV heads; ABSENT for latent attention, whose cache has no heads."""
    a = layer.attention
    if a is None or a.kind not in SOFTMAX:
        return ABSENT
    if a.kv_heads == a.heads:
        return "multi-head"
    return "multi-query" if a.kv_heads == 1 else "grouped-query"


def width(arch: ArchSpec) -> Any:
    """Whether all heads together are as wide as the residual; ABSENT without softmax attention."""
    found = {
        kind.attention.kind: kind.attention.heads * kind.attention.head_size_k == arch.hidden
        for kind in arch.kinds
        if kind.attention and kind.attention.kind in SOFTMAX
    }
    if not found:
        return ABSENT
    words = {kind: "hidden" if same else "not hidden" for kind, same in found.items()}
    return next(iter(words.values())) if len(set(words.values())) == 1 else words


def bias(layer: Layer) -> Any:
    """Which projections have a bias: ``q, k, v``, ``q, k, v, o``, ``none``."""
    a = layer.attention
    if a is None:
        return ABSENT
    return ", ".join(name for name in "qkvo" if getattr(a, f"{name}_bias")) or "none"


def scale(layer: Layer) -> Any:
    """The factor on q.k: the usual one by name, else the number."""
    a = layer.attention
    if a is None:
        return ABSENT
    if a.scale is None:
        return "unknown"
    return "head_size ** -0.5" if abs(a.scale * a.head_size_k**0.5 - 1) < 1e-9 else a.scale


def value_size(layer: Layer) -> Any:
    """Whether values are as wide as keys; ABSENT for latent attention, where that has its own fields."""
    a = layer.attention
    if a is None or a.latent is not None:
        return ABSENT
    return "as keys" if a.head_size_v == a.head_size_k else a.head_size_v


def leading(layer: Layer) -> Any:
    """Whether the first channels turn; ABSENT for latent attention, whose rope part is apart anyway."""
    a = layer.attention
    if a is None or a.positions.kind != "rotary" or a.latent is not None:
        return ABSENT
    return a.positions.leading


def mrope(layer: Layer) -> Any:
    """The sections of a multimodal rope, and how they lie; None without one."""
    a = layer.attention
    if a is None or a.positions.kind != "rotary":
        return ABSENT
    if a.positions.mrope is None and not a.positions.mrope_interleaved:
        return None
    sections = ", ".join(map(str, a.positions.mrope or ()))
    return f"{sections}, interleaved" if a.positions.mrope_interleaved else sections


def query_growth(layer: Layer) -> Any:
    """The growth of the query scale with the position, in words; None without it.

    Llama 4 sets it on the attention; Ministral 3 puts its beta among the rope's scaling, whose original length is the
    floor, and counts from position 0 where Llama 4 counts from 1.
    """
    a = layer.attention
    if a is None:
        return ABSENT
    turned = a.positions.scaling
    if turned is not None and turned.query_beta is not None:
        return f"floor {turned.original_max_positions}, beta {turned.query_beta}, offset 0"
    if a.query_growth_floor is None and a.query_growth_beta is None:
        return None
    return f"floor {a.query_growth_floor}, beta {a.query_growth_beta}"


def positions_of(*names: str) -> Any:
    """A getter of a rotary setting; ABSENT on layers that know no rotary positions."""
    get = dig("attention", "positions", *names)

    def rotary(layer: Layer) -> Any:
        return get(layer) if layer.attention and layer.attention.positions.kind == "rotary" else ABSENT

    return rotary


def _proportional(a: Attention) -> bool:
    return a.positions.scaling is not None and a.positions.scaling.kind == "proportional"


def scaling(layer: Layer) -> Any:
    """The scaling with all its parameters; for proportional rope the share that turns, which is part of it.

    The growth of the query scale is no part of the table: :func:`query_growth` tells it.
    """
    a = layer.attention
    if a is None or a.positions.kind != "rotary":
        return ABSENT
    if not _proportional(a):
        plain = a.positions.scaling
        return plain if plain is None else dataclasses.replace(plain, query_beta=None)
    share = (a.positions.rotary_dim or a.head_size_k) / a.head_size_k
    over = a.positions.frequency_dim or a.positions.rotary_dim
    told = f"{share:g} of the head turns, exponents over {'the whole head' if over == a.head_size_k else over}"
    return ", ".join([f"proportional: {told}", *describe(a.positions.scaling).split(": ", 1)[1:]])


def frequency_dim(layer: Layer) -> Any:
    """What the exponents are divided by; ABSENT for proportional rope, whose scaling says it."""
    a = layer.attention
    if a is None or a.positions.kind != "rotary" or _proportional(a):
        return ABSENT
    size = a.positions.frequency_dim
    if size in (None, a.positions.rotary_dim):
        return "rotary width"
    return "head size" if size == a.head_size_k else size


def rotary_part(layer: Layer) -> Any:
    """How much of a head turns: ``all`` of it, the latent rope part, or a share; ABSENT for proportional rope."""
    a = layer.attention
    if a is None or a.positions.kind != "rotary" or _proportional(a):
        return ABSENT
    turned = a.positions.rotary_dim
    whole = a.latent.rope_size if a.latent else a.head_size_k
    if turned is None or turned == whole:
        return "all"
    return f"{turned / whole:.6g} of the head"


A = (CONFIG, ATTENTION)
W = (ATTENTION, TABLE)
FIELDS: tuple[Field, ...] = (
    Field("attention.sharing", ITEM, "mixer", sharing, (CONFIG, TABLE, KV), sources=("attention.kv_heads",)),
    Field("attention.width", ITEM, "model", width, (CONFIG, TABLE), sources=("attention.head_size_k",)),
    Field("attention.window", ITEM, "mixer", dig("attention", "window"), (CONFIG, ATTENTION, KV)),
    Field("attention.chunk", ITEM, "mixer", dig("attention", "chunk"), (CONFIG, ATTENTION, KV)),
    Field("attention.bias", ITEM, "mixer", bias, (*A, TABLE),
          sources=tuple(f"attention.{n}_bias" for n in "qkvo")),
    Field("attention.qk_norm", ITEM, "mixer", dig("attention", "qk_norm"), (*A, TABLE)),
    Field("attention.v_norm", ITEM, "mixer", dig("attention", "v_norm"), W),
    Field("attention.out_norm", ITEM, "mixer", dig("attention", "out_norm"), W),
    Field("attention.k_eq_v", ITEM, "mixer", dig("attention", "k_eq_v"), W),
    Field("attention.storage", ITEM, "mixer", dig("attention", "storage"), (TABLE,)),
    Field("attention.scale", ITEM, "mixer", scale, A),
    Field("attention.softcap", ITEM, "mixer", dig("attention", "softcap"), A),
    Field("attention.clip_qkv", ITEM, "mixer", dig("attention", "clip_qkv"), A),
    Field("attention.sinks", ITEM, "mixer", dig("attention", "sinks"), W),
    Field("attention.output_gate", ITEM, "mixer", dig("attention", "output_gate"), W),
    Field("attention.shared_kv", "heterogeneous layers", "mixer",
          lambda x: ABSENT if x.attention is None else x.attention.shared_kv is not None, (ATTENTION, KV)),
    Field("attention.head_size_v", ITEM, "mixer", value_size, (*A, KV)),
    *inner(Latent, ("attention", "latent"), path="attention.latent", item=ITEM, facet="mixer", affects=(CONFIG,),
           sizes=("q_rank", "kv_rank", "nope_size", "rope_size")),
    Field("attention.latent.query", ITEM, "mixer",
          lambda x: ABSENT if not x.attention or not x.attention.latent else
          "direct" if x.attention.latent.q_rank is None else "through a low rank", W,
          sources=("attention.latent.q_rank",)),
    Field("attention.indexer", ITEM, "mixer", dig("attention", "indexer"), (*W, KV), presence=True),
    *inner(Indexer, ("attention", "indexer"), path="attention.indexer", item=ITEM, facet="mixer", affects=A,
           sizes=("heads", "head_size", "top_k")),
    *inner(Compressor, ("attention", "compressor"), path="attention.compressor", item=ITEM, facet="mixer", affects=A),
    Field("attention.o_groups", ITEM, "mixer", dig("attention", "o_groups"), W),
    Field("attention.o_rank", ITEM, "mixer", dig("attention", "o_rank"), (CONFIG,), "size"),
    Field("attention.query_growth", POSITIONS, "mixer", query_growth, A,
          sources=("attention.query_growth_floor", "attention.query_growth_beta")),
    Field("attention.heads", ITEM, "mixer", dig("attention", "heads"), (CONFIG,), "size"),
    Field("attention.kv_heads", ITEM, "mixer", dig("attention", "kv_heads"), (CONFIG, KV), "size"),
    Field("attention.head_size_k", ITEM, "mixer", dig("attention", "head_size_k"), (CONFIG, KV), "size"),
)  # fmt: skip

POSITION_FIELDS: tuple[Field, ...] = (
    Field("attention.positions.kind", POSITIONS, "mixer", dig("attention", "positions", "kind"), (CONFIG, ATTENTION)),
    Field("attention.positions.base", POSITIONS, "mixer", positions_of("base"), (CONFIG, ROTARY)),
    Field("attention.positions.rotary_dim", POSITIONS, "mixer", rotary_part, (CONFIG, ROTARY)),
    Field("attention.positions.interleaved", POSITIONS, "mixer", positions_of("interleaved"), (ROTARY, TABLE)),
    Field("attention.positions.leading", POSITIONS, "mixer", leading, (ROTARY,)),
    Field("attention.positions.reverse", POSITIONS, "mixer", positions_of("reverse"), (ROTARY,)),
    Field("attention.positions.dealt", POSITIONS, "mixer", positions_of("dealt"), (ROTARY,)),
    Field("attention.positions.frequency_dim", POSITIONS, "mixer", frequency_dim, (ROTARY,)),
    Field("attention.positions.scaling", POSITIONS, "mixer", scaling, (CONFIG, ROTARY)),
    Field("attention.positions.mrope", POSITIONS, "mixer", mrope, (CONFIG, ROTARY)),
    Field("attention.positions.learned_size", POSITIONS, "mixer", dig("attention", "positions", "learned_size"),
          (CONFIG,), "size"),
    Field("attention.positions.offset", POSITIONS, "mixer", dig("attention", "positions", "offset"), (ROTARY,)),
)  # fmt: skip

STATE_FIELDS: tuple[Field, ...] = inner(
    State, ("state",), path="state", item="special features", facet="mixer", affects=(CONFIG, "model.py mixer"),
    skip=("kind",), sizes=("heads", "head_size", "state_size", "key_heads", "groups", "conv_channels", "dt_rank"),
)  # fmt: skip
