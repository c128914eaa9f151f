"""Mixtures of experts on ordinary attention whose layers need a step of their own.

Sources: the modelling and configuration code of transformers 5.19, family by family; facts written anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onboard.arch.blocks import Layer, Norm, Router
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.families import common, dense, moe, windows
from onboard.facts.families.family import Family
from onboard.facts.families.windows import FULL, SLIDING
from onboard.facts.reader import Reader


@dataclass(frozen=True)
class Plan:
    """What tells one layer from another: its mask, whether it turns queries and keys, whether it has experts; query
    heads, rotary base and chosen experts where layers differ in them."""

    layer_type: str = FULL
    turned: bool = True
    sparse: bool = True
    heads: int | None = None
    base: float | None = None
    top_k: int | None = None


Change = Callable[[Layer, Plan], Layer]


def build(r: Reader, family: Family, plans: list[Plan], change: Change | None = None) -> ArchSpec:
    """The architecture of a decoder whose layers are planned; ``change`` completes the plain layer of a plan."""
    hidden = common.hidden_size(r)
    common.heads(r)
    common.causal_only(r)
    # Written for layers of a kind that this checkpoint may lack.
    r.use("intermediate_size", "dense_intermediate_size", "sliding_window", "first_k_dense_replace")

    def make(plan: Plan) -> Layer:
        with r.layer(plan.layer_type.split("_")[0]):
            one = dense.layer(r, family, hidden, plan.layer_type, plan.turned, plan.sparse)
            return one if change is None else change(one, plan)

    kinds, index = common.distinct(plans, make)
    return common.finish(r, family, kinds, index)


def types_or(r: Reader, n: int, rule: Callable[[int], bool], key: str | None = None) -> list[str]:
    """``layer_types``, else sliding where ``rule`` of the layer's index says so; ``key`` decides the rule."""
    types = windows.explicit_types(r, n)
    if types is not None:
        return types
    r.known(windows.AT, key=None if key is None else r.prefix + key)
    return [SLIDING if rule(i) else FULL for i in range(n)]


def named_types(r: Reader, n: int, names: Mapping[str, str], key: str = "layer_types") -> list[str] | None:
    """One of ``names`` for each layer, under the values' names; None where the config names none.

    Raises:
        ConfigError: not one for each layer, or a name that is not known.
    """
    types = r.maybe_list(key, str, windows.AT)
    if types is None:
        return None
    if len(types) != n or set(types) - set(names):
        raise r.wrong(key, types, f"for each of the {n} layers one of {', '.join(names)}")
    return [names[name] for name in types]


def sparse_from(r: Reader, family: Family, n: int, first: int) -> list[bool]:
    """``mlp_layer_types``, else experts from layer ``first`` on."""
    if r.has("mlp_layer_types"):
        return dense.sparse_layers(r, family, n)
    r.known("layers.moe")
    return [i >= first for i in range(n)]


def with_attention(one: Layer, **changes: object) -> Layer:
    """The layer with its attention changed."""
    assert one.attention is not None
    return dataclasses.replace(one, attention=dataclasses.replace(one.attention, **changes))  # type: ignore[arg-type]


def with_experts(one: Layer, **changes: object) -> Layer:
    """The layer with its experts changed, if it has any."""
    if one.moe is None:
        return one
    return dataclasses.replace(one, moe=dataclasses.replace(one.moe, **changes))  # type: ignore[arg-type]


def build_afmoe(r: Reader, family: Family) -> ArchSpec:
    """AFMoE: rope on sliding layers only, a gate on the attention's output, sigmoid routing after dense layers."""
    n = common.layer_count(r)
    every = r.integer("global_attn_every_n_layers")
    types = types_or(r, n, lambda i: (i + 1) % every != 0, "global_attn_every_n_layers")
    first = r.integer("num_dense_layers", "layers.moe", minimum=0)
    plans = [Plan(t, t == SLIDING, i >= first) for i, t in enumerate(types)]

    def change(one: Layer, _: Plan) -> Layer:
        r.known("attention.output_gate", "attention.gate_from", "attention.gate_act")
        return with_attention(one, output_gate="channel", gate_from="own")

    r.known("attention.positions.kind")
    return build(r, family, plans, change)


def build_aria(r: Reader, family: Family) -> ArchSpec:
    """Aria: the routed experts use SiLU whatever the config says."""
    n = common.layer_count(r)
    return build(r, family, [Plan()] * n, lambda one, _: with_experts(one, activation="silu"))


def build_cohere2_moe(r: Reader, family: Family) -> ArchSpec:
    """Cohere 2 MoE: parallel blocks, dense layers first, and the shared expert averaged with the routed ones."""
    n = common.layer_count(r)
    sparse = dense.sparse_layers(r, family, n)
    first = r.maybe_integer("first_k_dense_replace", minimum=0) or 0
    pattern, prefix = r.integer("sliding_window_pattern"), r.integer("prefix_dense_sliding_window_pattern")

    def rule(i: int) -> bool:
        return (i + 1) % prefix != 0 if i < first else (i - first + 1) % pattern != 0

    types = types_or(r, n, rule, "sliding_window_pattern")
    plans = [Plan(t, t == SLIDING or (prefix == 1 and not s), s) for t, s in zip(types, sparse, strict=True)]
    rms = r.maybe_decimal("rms_norm_eps") is not None
    family = dataclasses.replace(family, norm="rms" if rms else "layernorm",
                                 eps_key="rms_norm_eps" if rms else "layer_norm_eps")  # fmt: skip
    r.use("layer_norm_eps", "shared_expert_combination_strategy", "norm_topk_prob")
    width = r.maybe_integer("prefix_dense_intermediate_size", maximum=common.MAX_WIDTH)

    def change(one: Layer, _: Plan) -> Layer:
        if one.mlp is not None and width is not None:
            r.find("prefix_dense_intermediate_size", "mlp.size")
            one = dataclasses.replace(one, mlp=dataclasses.replace(one.mlp, size=width))
        return _cohere_experts(r, one)

    r.known("attention.positions.kind")
    return build(r, family, plans, change)


def _cohere_experts(r: Reader, one: Layer) -> Layer:
    if one.moe is None:
        return one
    score = r.maybe_text("expert_selection_fn", "moe.router.score") or "softmax"
    if score not in ("softmax", "sigmoid"):
        raise r.wrong("expert_selection_fn", score, "softmax or sigmoid")
    how = r.maybe_text("shared_expert_combination_strategy", "moe.output_scale") or "average"
    if how not in ("average", "sum"):
        raise r.wrong("shared_expert_combination_strategy", how, "average or sum")
    normalize = score == "softmax" or r.flag("norm_topk_prob", "moe.router.normalize", default=True)
    halved = how == "average" and one.moe.shared is not None
    return with_experts(one, router=Router(score, normalize), output_scale=0.5 if halved else 1.0)


def build_dots1(r: Reader, family: Family) -> ArchSpec:
    """dots.llm1: windows from layer ``max_window_layers`` on, whenever there is a window."""
    n = common.layer_count(r)
    window = r.maybe_integer("sliding_window", minimum=0)
    first = r.integer("max_window_layers", minimum=0)
    types = types_or(r, n, lambda i: window is not None and i >= first, "max_window_layers")
    return build(r, family, [Plan(t, True, s) for t, s in zip(types, dense.sparse_layers(r, family, n), strict=True)])


def build_exaone_moe(r: Reader, family: Family) -> ArchSpec:
    """EXAONE MoE: with a window, full layers go without rope."""
    n = common.layer_count(r)
    types = windows.attention_types(r, family, n)
    window = r.maybe_integer("sliding_window", "attention.positions.kind", minimum=0)
    sparse = dense.sparse_layers(r, family, n)
    plans = [Plan(t, window is None or t == SLIDING, s) for t, s in zip(types, sparse, strict=True)]
    return build(r, family, plans)


def build_ernie(r: Reader, family: Family) -> ArchSpec:
    """ERNIE 4.5 MoE: experts on every n-th layer of a range of layers."""
    n = common.layer_count(r)
    first = r.integer("moe_layer_start_index", "layers.moe", minimum=0)
    last = r.maybe_integer("moe_layer_end_index", "layers.moe", minimum=-1)
    last = n - 1 if last in (None, -1) else last
    every = r.integer("moe_layer_interval", "layers.moe")
    r.use("moe_norm_min", "moe_capacity", "moe_gate", "moe_use_aux_free")
    assert last is not None
    return build(r, family, [Plan(sparse=first <= i <= last and (i + 1) % every == 0) for i in range(n)])


def build_granitemoe_swa(r: Reader, family: Family) -> ArchSpec:
    """Granite MoE with windows: sinks everywhere, and a rotary base for each layer, 0 for a layer without rope."""
    n = common.layer_count(r)
    types = types_or(r, n, lambda i: i % 4 != 0)
    bases = r.find("layer_rope_theta")[0]
    if bases is not None and not (isinstance(bases, list) and len(bases) == n):
        raise r.wrong("layer_rope_theta", bases, f"a rotary base for each of the {n} layers")
    if bases is not None:
        r.find("layer_rope_theta", "attention.positions.base")
    given = [None] * n if bases is None else [r.number("layer_rope_theta", x or 0, 0.0) for x in bases]
    plans = [Plan(t, base != 0, base=base) for t, base in zip(types, given, strict=True)]

    def change(one: Layer, plan: Plan) -> Layer:
        assert one.attention is not None
        positions = one.attention.positions
        if plan.base:
            positions = dataclasses.replace(positions, base=plan.base)
        r.known("attention.sinks")
        return with_attention(one, positions=positions, sinks=True)

    r.known("attention.positions.kind")
    return build(r, family, plans, change)


def build_hunyuan_moe(r: Reader, family: Family) -> ArchSpec:
    """HunYuan MoE: a shared MLP beside the experts; the number of chosen ones may differ between layers."""
    n = common.layer_count(r)
    chosen, source = r.find("num_experts_per_tok", "moe.top_k")
    if not isinstance(chosen, list):
        return build(r, family, [Plan()] * n)
    if len(chosen) < n or any(type(x) is not int or x < 1 for x in chosen):
        raise r.wrong("num_experts_per_tok", chosen, f"a positive integer for each of the {n} layers")
    r.settle("num_experts_per_tok", max(chosen[:n]), source.key or "")
    return build(r, family, [Plan(top_k=k) for k in chosen[:n]], lambda one, plan: with_experts(one, top_k=plan.top_k))


def build_first_dense(r: Reader, family: Family) -> ArchSpec:
    """Hy3: the first layer is dense where nothing else is written."""
    n = common.layer_count(r)
    r.use("enable_moe_fp32_combine")
    return build(r, family, [Plan(sparse=s) for s in sparse_from(r, family, n, 1)])


def build_laguna(r: Reader, family: Family) -> ArchSpec:
    """Laguna: query heads for each layer, a softplus gate on the attention's output, rope by the kind of layer."""
    n = common.layer_count(r)
    types = types_or(r, n, lambda i: False)
    sparse = sparse_from(r, family, n, 1)
    heads = r.maybe_list("num_attention_heads_per_layer", int)
    if heads is not None and (len(heads) != n or any(h < 1 for h in heads)):
        raise r.wrong("num_attention_heads_per_layer", heads, f"query heads for each of the {n} layers")
    if r.flag("moe_apply_router_weight_on_input"):
        raise r.wrong("moe_apply_router_weight_on_input", True, "false: the reference refuses it")
    kv = common.heads(r)[1]
    plans = [Plan(types[i], True, sparse[i], heads=heads[i] if heads else None) for i in range(n)]

    def change(one: Layer, plan: Plan) -> Layer:
        gating = r.find("gating", "attention.output_gate")[0]
        gate = "head" if gating is True or gating == "per-head" else "channel"
        r.known("attention.gate_from", "attention.gate_act")
        one = with_attention(one, output_gate=gate, gate_from="own", gate_act="softplus")
        if plan.heads is not None:
            r.find("num_attention_heads_per_layer", "attention.heads")
            if plan.heads % kv:
                raise r.wrong("num_attention_heads_per_layer", plan.heads, f"a multiple of the {kv} KV heads")
            one = with_attention(one, heads=plan.heads)
        cap = r.maybe_decimal("moe_router_logit_softcapping", "moe.router.softcap", minimum=0.0) or None
        return one if one.moe is None else with_experts(one, router=dataclasses.replace(one.moe.router, softcap=cap))

    return build(r, family, plans, change)


def build_mimo_v2(r: Reader, family: Family) -> ArchSpec:
    """MiMo V2 Flash: values narrower than keys and scaled; sliding layers have sinks and twice the KV heads."""
    n = common.layer_count(r)
    types = types_or(r, n, lambda i: i != 0 and (i + 1) % 6 != 0)
    sparse = sparse_from(r, family, n, 1)

    def change(one: Layer, plan: Plan) -> Layer:
        sliding = plan.layer_type == SLIDING
        queries, kv = common.heads(r)
        if sliding:
            kv = 2 * kv
            r.derived("attention.kv_heads", "2 * num_key_value_heads")
            if queries % kv:
                raise r.wrong("num_key_value_heads", kv // 2, f"half of a divisor of the {queries} query heads")
        r.known("attention.sinks")
        scale = r.maybe_decimal("attention_value_scale", "attention.value_scale")
        size = r.integer("v_head_dim", "attention.head_size_v", maximum=common.MAX_WIDTH)
        scale = 1.0 if scale is None else scale
        return with_attention(one, kv_heads=kv, head_size_v=size, sinks=sliding, value_scale=scale)

    return build(r, family, [Plan(t, True, s) for t, s in zip(types, sparse, strict=True)], change)


def build_phimoe(r: Reader, family: Family) -> ArchSpec:
    """Phi-3.5 MoE: two experts by sparse mixing; longrope always turns by its short factors, and its size follows the
    length of the sequence."""
    n = common.layer_count(r)
    types = windows.attention_types(r, family, n)
    chosen = r.integer("num_experts_per_tok", "moe.top_k")
    if chosen != 2:
        raise r.wrong("num_experts_per_tok", chosen, "2: the family's routing always chooses two")
    jitter = r.decimal("router_jitter_noise", "moe.router.jitter", minimum=0.0)
    r.use("input_jitter_noise")
    block = r.maybe_mapping("rope_parameters") or r.maybe_mapping("rope_scaling") or {}
    short, long = block.get("short_mscale"), block.get("long_mscale")

    def change(one: Layer, _: Plan) -> Layer:
        assert one.attention is not None
        turn = one.attention.positions
        if turn.scaling is not None and turn.scaling.kind == "longrope":
            factor = r.number("rope_parameters", short, 0.0)
            turned = dataclasses.replace(turn.scaling, factors_long=turn.scaling.factors_short, attention_factor=factor)
            one = with_attention(one, positions=dataclasses.replace(turn, scaling=turned))
        return with_experts(one, router=Router("sparsemixer", jitter=jitter))

    spec = build(r, family, [Plan(t) for t in types], change)
    if short == long:
        return spec
    return dataclasses.replace(spec, beyond=(Beyond("rotary factor by sequence length", "PhimoeRotaryEmbedding",
                                                    "past the original context"),))  # fmt: skip


def build_jetmoe(r: Reader, family: Family) -> ArchSpec:
    """JetMoE: queries and outputs of attention come from experts too."""
    n, hidden = common.layer_count(r), common.hidden_size(r)
    kv, chosen = r.integer("num_key_value_heads"), r.integer("num_experts_per_tok")
    r.settle("num_attention_heads", kv * chosen, "num_key_value_heads * num_experts_per_tok")
    norm = Norm("rms", 1e-6)

    def change(one: Layer, _: Plan) -> Layer:
        return dataclasses.replace(one, norms=dataclasses.replace(one.norms, pre_mixer=norm, pre_mlp=norm))

    spec = build(r, family, [Plan()] * n, change)
    size, experts = spec.kinds[0].attention.head_size_k, r.integer("num_experts")  # type: ignore[union-attr]
    both = 2 * hidden * kv * size
    extra = n * (both * (experts - chosen) + hidden * experts + hidden)
    return dataclasses.replace(
        spec,
        beyond=(
            Beyond("mixture of attention heads", "JetMoeMoA", "every layer", extra),
            Beyond("bias on the sum of experts", "JetMoeMoE", "every layer", n * hidden),
        ),
    )


def build_minimax_m3(r: Reader, family: Family) -> ArchSpec:
    """MiniMax M3's decoder: clamped gates, norms with 1 + w, and a block-sparse indexer on some layers."""
    n, hidden = common.layer_count(r), common.hidden_size(r)
    types = named_types(r, n, {"full_attention": "full", "minimax_m3_sparse": "sparse"})
    marks = r.maybe_list("sparse_attention_config.sparse_attention_freq", int) if types is None else None
    if types is None:
        types = ["sparse" if m else "full" for m in marks] if marks is not None else ["full"] * n
    clamp = moe.swiglu_clamp(r, gpt_oss=True)

    def change(one: Layer, _: Plan) -> Layer:
        if one.mlp is not None:
            return dataclasses.replace(one, mlp=dataclasses.replace(one.mlp, clamp=clamp))
        assert one.moe is not None
        assert one.moe.shared is not None
        return with_experts(one, clamp=clamp, shared=dataclasses.replace(one.moe.shared, clamp=clamp, fused=True))

    r.use("sparse_attention_config", "rotary_dim", "index_block_size", "index_topk_blocks", "index_local_blocks")
    heads, size = r.integer("index_n_heads"), r.integer("index_head_dim")
    spec = build(r, family, [Plan(sparse=s) for s in dense.sparse_layers(r, family, n)], change)
    count = types.count("sparse")
    if not count:
        return spec
    where = ", ".join(str(i) for i, t in enumerate(types) if t == "sparse")
    extra = count * (hidden * (heads + 1) * size + 2 * size)
    part = Beyond("block-sparse indexer", "MiniMaxM3VLIndexer", f"layers {where}", extra)
    return dataclasses.replace(spec, beyond=(part,))
