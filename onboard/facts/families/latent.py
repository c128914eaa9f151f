"""Latent attention with something of its own: A.X K1 and K2, Hy4 and LongCat Flash.

Sources: the modelling and configuration code of transformers 5.19, family by family; facts written anew.
"""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import Attention, Layer
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.families import common, dense, experts, mla, moe
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader


def build_axk1(r: Reader, family: Family) -> ArchSpec:
    """A.X K1: DeepSeek V3 with a norm on what the experts and the shared expert give together."""
    r.known("norms.places")

    def change(one: Layer) -> Layer:
        if one.moe is None:
            return one
        return dataclasses.replace(one, norms=dataclasses.replace(one.norms, post_mlp=one.norms.pre_mlp))

    return common.each(mla.build(r, family), change)


def build_axk2(r: Reader, family: Family) -> ArchSpec:
    """A.X K2: gated norms, and queries and output gates from the query's low rank before and after its norm."""
    hidden, rank = common.hidden_size(r), r.integer("gated_norm_rank")
    r.use("layer_types", "intermediate_size")
    if r.maybe_integer("n_group") is None:
        r.settle("n_group", 1, "no groups")
        r.settle("topk_group", 1, "no groups")
    spec = mla.build(r, family)
    one = spec.kinds[0].attention
    assert one is not None
    assert one.latent is not None
    if one.latent.q_rank is None:
        raise r.wrong("q_lora_rank", None, "a rank: queries, gates and the indexer read it")
    spec = common.each(spec, lambda layer: experts.with_attention(layer, output_gate="channel", gate_from="query"))
    # The gate's rows are counted as reading the hidden size; they read twice the rank, and so do the queries.
    gate = one.heads * one.head_size_v
    query = one.latent.q_rank * (one.heads * one.head_size_k + 2 * gate) - hidden * gate
    norms = spec.layers + sum(layer.moe is not None for layer in spec)
    n_group = Beyond("experts of other groups count as 0", "AXK2TopkRouter", "layers with experts")
    grouped = any(layer.moe is not None and layer.moe.router.groups > 1 for layer in spec)
    return dataclasses.replace(
        spec,
        beyond=(
            Beyond("gated norms", "AXK2GatedRMSNorm", "before attention and experts", norms * 2 * hidden * rank),
            Beyond("queries from two ranks", "AXK2Attention", "every layer", spec.layers * query),
            *((n_group,) if grouped else ()),
        ),
    )


def build_hy_v4(r: Reader, family: Family) -> ArchSpec:
    """Hy4: sinks and output gates on latent attention, clamped experts, hyper-connections without a mixing matrix."""
    hidden, streams = common.hidden_size(r), r.integer("hc_mult")
    n = common.layer_count(r)
    if not r.has("mlp_layer_types"):
        r.settle("first_k_dense_replace", 1, "the family's first layer")
    if not r.has("indexer_types"):
        types = ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(n)]
        r.settle("indexer_types", types, "the family's pattern")
    r.use("hc_eps", "hc_magnitude", "learnable_sink_init", "first_k_dense_replace", "layer_types")
    clamp = moe.swiglu_clamp(r, gpt_oss=False)

    def change(one: Layer) -> Layer:
        r.known("attention.sinks", "attention.output_gate", "attention.gate_from")
        one = experts.with_attention(one, sinks=True, output_gate="channel", gate_from="own")
        return experts.with_experts(one, clamp=clamp)

    spec = common.each(mla.build(r, family), change)
    mixed = 2 * streams
    around = spec.layers * 2 * (mixed * streams * hidden + mixed + 2)
    head = streams * streams * hidden + streams + 1
    return dataclasses.replace(
        spec, beyond=(Beyond("hyper-connections", "HYV4HyperConnection", "around every block", around + head),)
    )


def build_longcat(r: Reader, family: Family) -> ArchSpec:
    """LongCat Flash: each of its layers is two of ours, with experts that start in the first and end in the second.

    The factors on queries and latent are part of the scale and of ``kv_scale``. Experts that give their input back are
    not among ``experts``; they have rows in the router, and in the fused weights of transformers unused ones, which
    are not counted.
    """
    n, hidden = common.layer_count(r), common.hidden_size(r)
    zero = r.maybe_integer("zero_expert_num", minimum=0) or 0
    r.use("router_bias", "zero_expert_type")

    def make(first: bool) -> Layer:
        with r.layer("mla"):
            return Layer(
                attention=scaled(r, hidden, mla.attention(r, family, None)),
                mlp=moe.mlp(r, family),
                moe=moe.moe(r, family, moe.STYLES["longcat"]) if first else None,
                norms=dense.norms(r, family),
            )

    r.notes.append(f"each of the {n} layers holds two of attention and MLP; they are counted as {2 * n} layers")
    kinds, index = common.distinct([True, False] * n, make)
    spec = common.finish(r, family, kinds, index)
    parts = [Beyond("experts beside two blocks", "LongcatFlashDecoderLayer", "added after every second layer's MLP")]
    if zero:
        rows = n * zero * hidden
        parts.append(Beyond("identity experts", "LongcatFlashExperts", f"{zero} after the other experts", rows))
    return dataclasses.replace(spec, beyond=tuple(parts))


def scaled(r: Reader, hidden: int, one: Attention) -> Attention:
    """Queries times sqrt(H / query rank), the latent times sqrt(H / KV rank)."""
    assert one.latent is not None
    assert one.scale is not None
    if one.latent.q_rank is None:
        raise r.wrong("q_lora_rank", None, "a rank: the reference has no other queries")
    r.derived("attention.scale", "sqrt(hidden_size / q_lora_rank) / sqrt(head size), with yarn's mscale_all_dim")
    r.derived("attention.latent.kv_scale", "sqrt(hidden_size / kv_lora_rank)")
    latent = dataclasses.replace(one.latent, kv_scale=(hidden / one.latent.kv_rank) ** 0.5)
    return dataclasses.replace(one, scale=one.scale * (hidden / one.latent.q_rank) ** 0.5, latent=latent)
