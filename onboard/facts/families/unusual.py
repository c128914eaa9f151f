"""Decoders that little of a spec can say: RWKV 4, Zaya, Inkling and Qwen4-Exp. What their fields can't say is told.

Sources: the modelling and configuration code of transformers 5.19, family by family; facts written anew.
"""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import MLP, Layer, LayerNorms, Norm, QKNorm, Router, State
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts import rope
from onboard.facts.families import common, dense, experts, moe, recurrent, windows
from onboard.facts.families.family import Family
from onboard.facts.families.windows import FULL, SLIDING
from onboard.facts.reader import Reader


def build_rwkv(r: Reader, family: Family) -> ArchSpec:
    """RWKV 4: time mixing and channel mixing."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    width = r.maybe_integer("attention_hidden_size", "state.heads", maximum=common.MAX_WIDTH) or hidden
    size = r.maybe_integer("intermediate_size", "mlp.size", maximum=common.MAX_WIDTH) or 4 * hidden
    norm = common.norm(r, family)
    r.use("rescale_every")
    r.known("mlp.activation", "mlp.gated")
    layer = Layer(
        state=State("wkv", width, 1, 3),
        mlp=MLP(size, "relu2", gated=False),
        norms=LayerNorms(pre_mixer=norm, pre_mlp=norm),
    )
    emb = dataclasses.replace(common.embedding(r, family, hidden), norm=norm)
    spec = common.finish(r, family, (layer,), (0,) * n, emb=emb, final_norm=Norm("layernorm", 1e-5, bias=True))
    mixing = Beyond("channel mixing", "RwkvFeedForward", "every layer", n * (hidden * hidden + 2 * hidden))
    return dataclasses.replace(spec, beyond=(mixing,))


def build_zaya(r: Reader, family: Family) -> ArchSpec:
    """Zaya: queries, keys and values from convolutions, and a router that is an MLP and remembers earlier layers."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = experts.named_types(r, n, {"hybrid": FULL, "hybrid_sliding": SLIDING}) or [FULL] * n
    heads, kv = common.heads(r)
    size = common.head_size(r, heads, hidden)

    def change(one: Layer, plan: experts.Plan) -> Layer:
        name = "hybrid_sliding" if plan.layer_type == SLIDING else "hybrid"
        norm = QKNorm(Norm("l2", None, weight=False))
        one = experts.with_attention(one, positions=rope.rotary(r, size, layer_type=name), qk_norm=norm)
        return experts.with_experts(one, router=Router(correction_bias=True))

    spec = experts.build(r, family, [experts.Plan(t, turned=False) for t in types], change)
    experts_count, inner = r.integer("num_experts"), r.integer("router_hidden_size")
    channels, first, second = (heads + kv) * size, r.integer("cca_time0"), r.integer("cca_time1")
    convolutions = n * (channels * (first + 1) + channels * (size * second + 1) + kv)
    mlp = inner + 2 * (inner * inner + inner) + inner * (experts_count + 1)
    router = n * (hidden * inner + inner + mlp - hidden * experts_count) + (n - 1) * inner
    return dataclasses.replace(
        spec,
        residual_dtype="float32",
        beyond=(
            Beyond("compressed convolutional attention", "ZayaCCAProjection", "every layer", convolutions),
            Beyond("router as an MLP with memory", "ZayaRouter", "every layer", router),
            Beyond("an expert that is skipped", "ZayaRouter", "every layer"),
            Beyond("scaled residuals", "ZayaResidualScaling", "after every block", n * 8 * hidden + 2 * hidden),
        ),
    )


def build_inkling(r: Reader, family: Family) -> ArchSpec:
    """Inkling: relative position biases, short convolutions, and shared experts that share the routing weights."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    local = r.maybe_list("local_layer_ids", int, windows.AT)
    names = {"hybrid": FULL, "hybrid_sliding": SLIDING}
    types = experts.named_types(r, n, names)
    if types is None:
        types = [SLIDING if (i in local if local is not None else (i + 1) % 6) else FULL for i in range(n)]
    first = r.maybe_integer("dense_mlp_idx", minimum=0) or 0
    sparse = experts.sparse_from(r, family, n, first)
    if r.has("dense_intermediate_size"):
        r.settle("intermediate_size", r.integer("dense_intermediate_size"), "dense_intermediate_size")
    shared = r.maybe_integer("num_shared_experts", "moe.shared", minimum=0) or 0

    def change(one: Layer, plan: experts.Plan) -> Layer:
        sliding = plan.layer_type == SLIDING
        prefix = "swa_" if sliding else ""
        heads = r.integer(f"{prefix}num_attention_heads", "attention.heads")
        kv = r.integer(f"{prefix}num_key_value_heads", "attention.kv_heads")
        size = r.integer(f"{prefix}head_dim", "attention.head_size_k")
        r.derived("attention.scale", "1 / head size")
        one = experts.with_attention(one, heads=heads, kv_heads=kv, head_size_k=size, head_size_v=size, scale=1 / size)
        floor = None if sliding else r.maybe_integer("log_scaling_n_floor", "attention.query_growth_floor")
        beta = r.decimal("log_scaling_alpha", "attention.query_growth_beta") if floor is not None else None
        one = experts.with_attention(one, query_growth_floor=floor, query_growth_beta=beta)
        scale = r.maybe_decimal("routed_scaling_factor", "moe.router.scale") or 1.0
        return experts.with_experts(one, router=Router("sigmoid", True, scale, correction_bias=True))

    plans = [experts.Plan(t, False, s) for t, s in zip(types, sparse, strict=True)]
    spec = experts.build(r, family, plans, change)
    r.use("log_scaling_alpha", "shared_expert_sink", "rms_norm_eps_moe_gate", "unpadded_vocab_size", "num_mtp_layers",
          "mtp_local_layer_ids", "chain_hidden_post_norm", "mtp_hidden_states_first", "number_of_conv_states",
          "sliding_window")  # fmt: skip
    kernel, rel = r.integer("conv_kernel_size"), r.integer("d_rel")
    extents = {FULL: r.integer("rel_extent"), SLIDING: r.integer("sliding_window")}
    biases = convolutions = 0
    for kind, layer in zip(types, spec, strict=True):
        assert layer.attention is not None
        biases += hidden * layer.attention.heads * rel + rel * extents[kind]
        convolutions += 2 * kernel * (layer.attention.kv_heads * layer.attention.head_size_k + hidden)
    routed = sum(sparse) * (hidden * shared)
    return dataclasses.replace(
        spec,
        beyond=(
            Beyond("relative position bias", "InklingRelativeLogits", "every layer", biases),
            Beyond("short convolutions", "InklingShortConvolution", "keys, values, attention, MLP", convolutions),
            Beyond("shared experts in the routing", "InklingTopkRouter", "layers with experts", routed),
            Beyond("learned factor", "InklingMLP", "every MLP and router", n),
        ),
    )


def build_qwen4(r: Reader, family: Family) -> ArchSpec:
    """Qwen4-Exp: Qwen 3.5's blocks in gated residual streams, with an indexer and n-gram embeddings."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    names = {"linear_attention": "linear", "indexed_attention": FULL, "full_attention": FULL}
    every = r.maybe_integer("full_attention_interval") or 4
    types = experts.named_types(r, n, names) or ["linear" if (i + 1) % every else FULL for i in range(n)]
    gate = r.maybe_text("output_gate_type")
    r.use("number_of_conv_states", "mtp_num_hidden_layers", "seed", "split_ngram_parts", "intermediate_size")

    def make(layer_type: str) -> Layer:
        full = layer_type == FULL
        with r.layer("full" if full else "linear"):
            block = dense.attention(r, family, hidden, FULL, True) if full else None
            if block is not None:
                block = dataclasses.replace(block, output_gate="channel")
            net = dataclasses.replace(recurrent.delta_net(r, family), fused_projections=False)
            return Layer(
                attention=block,
                state=None if full else net,
                moe=moe.moe(r, family, moe.STYLES["qwen2"]),
            )

    kinds, index = common.distinct(types, make)
    spec = common.finish(r, dataclasses.replace(family, final_norm=False), kinds, index)
    streams, low = r.integer("hc_count"), r.integer("hc_lowrank")
    wide = streams * hidden
    mixing = (2 * n + 1) * (wide + 2 * wide * low) + 2 * n * wide * streams
    heads, size = r.integer("indexer_n_heads"), r.integer("indexer_head_dim")
    one = hidden * (heads + r.integer("indexer_kv_heads")) * size + 2 * size
    r.use("indexer_budget", "indexer_compress_ratio")
    parts = [
        Beyond("gated residual streams", "Qwen4ExpTextGatedResidual", "around every block", mixing),
        Beyond("indexer over pooled blocks", "Qwen4ExpTextQSAIndexer", "full layers", types.count(FULL) * one),
    ]
    if gate not in (None, spec.kinds[0].state and spec.kinds[0].state.activation):
        parts.append(Beyond(f"gate by {gate}", "Qwen4ExpTextRMSNormGated", "linear layers"))
    places = r.maybe_list("ple_layer_ids", int)
    if places:
        r.warn("the n-gram tables of Qwen4-Exp are not counted")
        parts.append(Beyond("n-gram embeddings", "Qwen4ExpTextPLELayer", f"layers {places}"))
    r.use("ple_embed_dim", "ple_conv_kernel_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base",
          "make_ngram_vocab_size_divisible_by")  # fmt: skip
    return dataclasses.replace(spec, beyond=tuple(parts))
