"""Llama 4: chunked layers with rope, full ones without, and experts on every n-th layer."""

from __future__ import annotations

from onboard.arch.blocks import MLP, Attention, Layer, MoE, Norm, Positions, QKNorm, Router
from onboard.arch.spec import ArchSpec
from onboard.facts import rope
from onboard.facts.families import common, dense, moe, rotating, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader


def build(r: Reader, family: Family) -> ArchSpec:
    """The architecture of a Llama 4 text model."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    turned = rotating.layers_with_rope(r, family, [windows.FULL] * n)
    types = windows.explicit_types(r, n) or [windows.CHUNKED if t else windows.FULL for t in turned]
    sparse = moe_layers(r, n)

    def make(signature: tuple[str, bool, bool]) -> Layer:
        layer_type, rope_here, experts = signature
        with r.layer(layer_type.split("_")[0]):
            return Layer(
                attention=attention(r, family, hidden, layer_type, rope_here),
                mlp=None if experts else moe.mlp(r, family),
                moe=experts_of(r, family) if experts else None,
                norms=dense.norms(r, family),
            )

    kinds, index = common.distinct(list(zip(types, turned, sparse, strict=True)), make)
    return common.finish(r, family, kinds, index)


def moe_layers(r: Reader, n: int) -> list[bool]:
    """Layers with experts: by list, else every ``interleave_moe_layer_step``-th."""
    step = r.integer("interleave_moe_layer_step", "layers.moe")
    given = r.maybe_list("moe_layers", int, "layers.moe")
    if given is None:
        return [(i + 1) % step == 0 for i in range(n)]
    if any(not 0 <= i < n for i in given):
        raise r.wrong("moe_layers", given, f"layers from 0 to {n - 1}")
    chosen = set(given)
    return [i in chosen for i in range(n)]


def attention(r: Reader, family: Family, hidden: int, layer_type: str, turned: bool) -> Attention:
    """The attention block of one kind of layer."""
    n, k = common.heads(r)
    size = common.head_size(r, n, hidden)
    chunked = layer_type == windows.CHUNKED
    bias = r.flag("attention_bias", "attention.q_bias")
    normed = r.flag("use_qk_norm", "attention.qk_norm", default=True) and turned
    growing = r.flag("attn_temperature_tuning", default=True) and not turned
    r.find("floor_scale", "attention.query_growth_floor")
    floor, beta = r.integer("floor_scale"), r.decimal("attn_scale", "attention.query_growth_beta")
    chunk = r.maybe_integer("attention_chunk_size", "attention.chunk")
    r.derived("attention.scale", "1 / sqrt(head size)")
    r.known("attention.qk_norm.place", "attention.positions.interleaved")
    return Attention(
        kind="chunked" if chunked and chunk else "full",
        heads=n,
        kv_heads=k,
        head_size_k=size,
        head_size_v=size,
        positions=rope.rotary(r, size, interleaved=True) if turned else Positions("none"),
        scale=size**-0.5,
        q_bias=bias,
        k_bias=bias,
        v_bias=bias,
        o_bias=bias,
        qk_norm=QKNorm(l2(r, family), place="after_rope") if normed else None,
        chunk=chunk if chunked else None,
        query_growth_floor=floor if growing else None,
        query_growth_beta=beta if growing else None,
    )


def l2(r: Reader, family: Family) -> Norm:
    """The norm of queries and keys: root mean square without a weight."""
    return Norm("rms", common.norm(r, family).eps, weight=False)


def experts_of(r: Reader, family: Family) -> MoE:
    """Experts whose input, not output, is weighted by a sigmoid of the chosen scores, and a shared one."""
    experts, top_k = r.integer("num_experts", "moe.experts"), r.integer("num_experts_per_tok", "moe.top_k")
    if top_k > experts:
        raise r.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
    size = r.integer("moe_intermediate_size", "moe.size", maximum=common.MAX_WIDTH)
    act = common.activation(r, family, "moe.activation")
    r.find("moe_intermediate_size", "moe.shared.size"), r.find("hidden_act", "moe.shared.activation")
    r.known("moe.router.score", "moe.router.weight_on", "moe.shared")
    return MoE(
        experts=experts,
        top_k=top_k,
        size=size,
        activation=act,
        router=Router(score="sigmoid", weight_on="input"),
        shared=MLP(size, act),
    )
