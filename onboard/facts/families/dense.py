"""The builder for families that :class:`Family`'s traits describe completely."""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import Attention, Layer, LayerNorms, Norm, Positions, QKNorm
from onboard.arch.spec import ArchSpec
from onboard.facts.families import common, moe, rotating, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

CLIPPED = ("dbrx", "olmo", "olmoe", "mpt")


def build(r: Reader, family: Family) -> ArchSpec:
    """The architecture of a decoder whose layers are attention and an MLP or experts."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    common.heads(r)
    common.causal_only(r)
    types = windows.attention_types(r, family, n)
    rope = rotating.layers_with_rope(r, family, types)
    sparse = sparse_layers(r, family, n)
    overrides = r.layer_overrides(n)
    signatures = [(types[i], rope[i], sparse[i], overrides.get(i)) for i in range(n)]

    def make(signature: tuple[str, bool, bool, int | None]) -> Layer:
        layer_type, turned, experts, override = signature
        with r.layer(layer_type.split("_")[0], override):
            return layer(r, family, hidden, layer_type, turned, experts)

    kinds, index = common.distinct(signatures, make)
    emb = common.embedding(r, family, hidden)
    if family.positions in ("learned", "sinusoidal"):
        emb = dataclasses.replace(emb, positions=table(r, family))
    return common.finish(r, family, kinds, index, emb=emb)


def table(r: Reader, family: Family) -> Positions:
    """Positions that are added to the embedding."""
    size = r.integer("max_position_embeddings", "embedding.positions", maximum=2**24)
    if family.positions == "learned":
        return Positions("learned", learned_size=size + family.learned_offset, offset=family.learned_offset)
    return Positions(family.positions)


def layer(r: Reader, family: Family, hidden: int, layer_type: str, turned: bool, experts: bool) -> Layer:
    """One kind of layer."""
    return Layer(
        attention=attention(r, family, hidden, layer_type, turned),
        mlp=None if experts else moe.mlp(r, family),
        moe=moe.moe(r, family, moe.STYLES[family.moe]) if experts and family.moe else None,
        norms=norms(r, family),
        parallel=family.places.startswith("parallel"),
        shared_norm=family.places == "parallel",
        residual_scale=common.residual_scale(r, family),
        norm_after_add=family.places == "after_sum",
    )


def norms(r: Reader, family: Family) -> LayerNorms:
    """The layer's norms at the family's places."""
    r.known("norms.places")
    one: Norm = common.norm(r, family)
    pre, post = LayerNorms(pre_mixer=one, pre_mlp=one), LayerNorms(post_mixer=one, post_mlp=one)
    return {
        "pre": pre,
        "post": post,
        "after_sum": post,
        "sandwich": LayerNorms(one, one, one, one),
        "parallel": LayerNorms(pre_mixer=one),
        "parallel2": pre,
    }[family.places]


def attention(r: Reader, family: Family, hidden: int, layer_type: str, turned: bool) -> Attention:
    """The attention block of one kind of layer."""
    n, k = common.heads(r)
    size = common.head_size(r, n, hidden)
    sliding = layer_type == windows.SLIDING
    return Attention(
        kind="sliding" if sliding else "full",
        heads=n,
        kv_heads=k,
        head_size_k=size,
        head_size_v=size,
        positions=rotating.positions(r, family, size, layer_type, turned),
        scale=scale(r, family, size),
        q_bias=common.decide(r, family.q_bias, "attention.q_bias"),
        k_bias=common.decide(r, family.k_bias, "attention.k_bias"),
        v_bias=common.decide(r, family.v_bias, "attention.v_bias"),
        o_bias=common.decide(r, family.o_bias, "attention.o_bias"),
        qk_norm=qk_norm(r, family),
        window=r.integer("sliding_window", "attention.window") if sliding else None,
        softcap=softcap(r, family),
        clip_qkv=clip(r, family),
    )


def softcap(r: Reader, family: Family) -> float | None:
    """The cap on attention scores, where the family honours one."""
    if family.softcaps is not True:
        return None
    return r.maybe_decimal("attn_logit_softcapping", "attention.softcap", minimum=0.0) or None


def clip(r: Reader, family: Family) -> float | None:
    """The clamp on queries, keys and values, where the family honours one."""
    if family.model_type not in CLIPPED and r.default_kind != "assumed":
        return None
    return r.maybe_decimal("clip_qkv", "attention.clip_qkv", minimum=0.0) or None


def scale(r: Reader, family: Family, size: int) -> float:
    """What multiplies q.k."""
    if family.scale is None:
        r.derived("attention.scale", "1 / sqrt(head size)")
        return size**-0.5
    if family.scale == "one":
        r.known("attention.scale")
        return 1.0
    value = r.decimal(family.scale, "attention.scale", minimum=1e-12)
    return value**-0.5 if family.scale == "query_pre_attn_scalar" else value


def qk_norm(r: Reader, family: Family) -> QKNorm | None:
    """The norm of queries and keys, if the family or its switch has one."""
    if family.qk_norm is None or (family.qk_norm_if and not r.flag(family.qk_norm_if, "attention.qk_norm")):
        r.known("attention.qk_norm", "attention.qk_norm.place")
        return None
    r.known("attention.qk_norm", "attention.qk_norm.place")
    one = common.norm(r, family, "attention.qk_norm")
    return QKNorm(dataclasses.replace(one, bias=one.bias and family.qk_bias), family.qk_norm, family.qk_place)


def sparse_layers(r: Reader, family: Family, n: int) -> list[bool]:
    """Which layers have experts.

    Honours ``mlp_layer_types``, ``mlp_only_layers``, ``decoder_sparse_step``, ``first_k_dense_replace`` and
    ``moe_layer_freq``.
    """
    if family.moe is None or not r.maybe_integer("num_experts", minimum=0):
        return [False] * n
    named = r.maybe_list("mlp_layer_types", str, "layers.moe")
    if named is not None:
        if len(named) < n or set(named) - {"dense", "sparse", "moe", "hash_moe"}:
            raise r.wrong("mlp_layer_types", named, f"dense or sparse for each of {n} layers")
        return [name != "dense" for name in named[:n]]
    first = r.maybe_integer("first_k_dense_replace", "layers.moe", minimum=0) or 0
    step = r.maybe_integer("decoder_sparse_step", "layers.moe") or 1
    freq = r.find("moe_layer_freq")[0]
    only = set(r.maybe_list("mlp_only_layers", int, "layers.moe") or ())
    if isinstance(freq, list):
        if len(freq) != n or any(x not in (0, 1) for x in freq):
            raise r.wrong("moe_layer_freq", freq, f"0 or 1 for each of {n} layers")
        return [bool(x) for x in freq]
    freq = r.maybe_integer("moe_layer_freq", "layers.moe") or 1
    return [i >= first and i % freq == 0 and i not in only and (i + 1) % step == 0 for i in range(n)]
