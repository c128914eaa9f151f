"""Gemma 4: two head sizes, values from the key projection, shared caches, per-layer inputs, experts beside an MLP."""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import Attention, Layer, LayerNorms, MoE, Norm, Positions, QKNorm, Router
from onboard.arch.spec import ArchSpec, PerLayerInput
from onboard.facts import rope
from onboard.facts.families import common, moe, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

FULL, SLIDING = windows.FULL, windows.SLIDING


def build(r: Reader, family: Family) -> ArchSpec:
    """The architecture of a Gemma 4 text model."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    common.causal_only(r)
    types = windows.attention_types(r, family, n)
    if types[-1] != FULL:
        r.warn(f"the last layer is {types[-1]}, but the family makes it full_attention; full_attention wins")
        types[-1] = FULL
    shared = r.maybe_integer("num_kv_shared_layers", "attention.shared_kv", minimum=0) or 0
    if shared > n:
        raise r.wrong("num_kv_shared_layers", shared, f"at most the {n} layers")
    first = n - shared
    sources = [cache_of(types, i, first) for i in range(n)]
    overrides = r.layer_overrides(n)
    wide = r.flag("use_double_wide_mlp")

    def make(signature: tuple[str, int | None, int | None]) -> Layer:
        layer_type, source, override = signature
        with r.layer(layer_type.split("_")[0], override):
            return layer(
                r, family, hidden, layer_type, source, wide=wide and source is not None, listed=bool(overrides)
            )

    signatures = [(types[i], sources[i], overrides.get(i)) for i in range(n)]
    kinds, index = common.distinct(signatures, make)
    spec = common.finish(r, family, kinds, index)
    return dataclasses.replace(spec, per_layer_input=per_layer_input(r, family))


def cache_of(types: list[str], i: int, first: int) -> int | None:
    """The layer whose cache layer ``i`` reads: the last one of its type before the shared ones; None: its own."""
    if i < first or first <= 0:
        return None
    return next((j for j in reversed(range(first)) if types[j] == types[i]), None)


def layer(
    r: Reader, family: Family, hidden: int, layer_type: str, source: int | None, *, wide: bool, listed: bool
) -> Layer:
    """One kind of layer; ``wide``: its MLP has twice the width; ``listed``: ``per_layer_config`` says what differs."""
    one = common.norm(r, family)
    size = r.integer("intermediate_size", "mlp.size", maximum=common.MAX_WIDTH) * (2 if wide else 1)
    experts = moe_block(r, family) if r.flag("enable_moe_block", "moe") else None
    inner = one if experts is not None else None
    r.known("norms.places", "output_scalar")
    return Layer(
        attention=attention(r, family, hidden, layer_type, source, listed=listed),
        mlp=moe.mlp(r, family, size),
        moe=experts,
        norms=LayerNorms(one, one, one, one, post_dense=inner, pre_moe=inner, post_moe=inner),
        per_layer_input=bool(r.maybe_integer("hidden_size_per_layer_input", "per_layer_input", minimum=0)),
        output_scalar=True,
    )


def attention(
    r: Reader, family: Family, hidden: int, layer_type: str, source: int | None, *, listed: bool
) -> Attention:
    """The attention of one kind of layer; full layers have their own head size and, with shared k and v, KV heads."""
    full = layer_type == FULL
    n, k = common.heads(r)
    size = common.head_size(r, n, hidden)
    k_eq_v = r.flag("attention_k_eq_v", "attention.k_eq_v") and full
    wide, few = r.maybe_integer("global_head_dim"), r.maybe_integer("num_global_key_value_heads")
    if full and not listed:
        if wide:
            r.find("global_head_dim", "attention.head_size_k"), r.find("global_head_dim", "attention.head_size_v")
            size = wide
        if k_eq_v and few:
            r.find("num_global_key_value_heads", "attention.kv_heads")
            k = few
    if n % k:
        raise r.wrong("num_key_value_heads", k, f"a divisor of the {n} query heads")
    eps = common.norm(r, family)
    bias = r.flag("attention_bias", "attention.q_bias")
    r.known("attention.scale", "attention.qk_norm", "attention.qk_norm.place", "attention.v_norm")
    return Attention(
        kind="full" if full else "sliding",
        heads=n,
        kv_heads=k,
        head_size_k=size,
        head_size_v=size,
        positions=_positions(r, size, layer_type),
        scale=1.0,
        q_bias=bias,
        k_bias=bias,
        v_bias=bias and not k_eq_v,
        o_bias=bias,
        qk_norm=QKNorm(eps),
        v_norm=Norm("rms", eps.eps, weight=False),
        k_eq_v=k_eq_v,
        window=None if full else r.integer("sliding_window", "attention.window"),
        shared_kv=source,
    )


def _positions(r: Reader, size: int, layer_type: str) -> Positions:
    return rope.rotary(r, size, layer_type=layer_type)


def moe_block(r: Reader, family: Family) -> MoE:
    """The experts, with the router's own norm and scales."""
    eps = common.norm(r, family).eps
    experts, top_k = r.integer("num_experts", "moe.experts"), r.integer("num_experts_per_tok", "moe.top_k")
    if top_k > experts:
        raise r.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
    r.known("moe.router.score", "moe.router.normalize", "moe.router.input_norm")
    return MoE(
        experts=experts,
        top_k=top_k,
        size=r.integer("moe_intermediate_size", "moe.size", maximum=common.MAX_WIDTH),
        activation=common.activation(r, family, "moe.activation"),
        router=Router(normalize=True, input_norm=Norm("rms", eps, weight=False), input_scale=True, expert_scale=True),
    )


def per_layer_input(r: Reader, family: Family) -> PerLayerInput | None:
    """The per-layer embeddings, if the model has them."""
    size = r.maybe_integer("hidden_size_per_layer_input", "per_layer_input.size", minimum=0)
    if not size:
        r.use("vocab_size_per_layer_input")
        return None
    vocab = r.integer("vocab_size_per_layer_input", "per_layer_input.vocab", maximum=2**31)
    return PerLayerInput(vocab, size, common.norm(r, family, "per_layer_input.norm"))
