"""Decoders with a recurrent state beside attention: Kimi Linear, OLMo Hybrid, Jamba, MiniMax, Falcon H1, Zamba.

Sources: the modelling and configuration code of transformers 5.19, family by family; facts written anew.
"""

from __future__ import annotations

import dataclasses
import math

from onboard.arch.blocks import Layer, LayerNorms, Norm, State
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.families import common, dense, experts, mla, moe, recurrent, windows
from onboard.facts.families.family import Family
from onboard.facts.families.windows import FULL
from onboard.facts.reader import Reader

LINEAR = "linear_attention"
KINDS = {"linear_attention": LINEAR, "full_attention": FULL, "attention": FULL, "mamba": LINEAR}


def build_kimi_linear(r: Reader, family: Family) -> ArchSpec:
    """Kimi Linear: delta attention with a decay for each channel, and latent attention without positions."""
    n = common.layer_count(r)
    types = experts.named_types(r, n, KINDS) or _kimi_types(r, n)
    if not r.has("mlp_layer_types") and not r.has("first_k_dense_replace"):
        r.settle("first_k_dense_replace", 1, "the family's first layer")
    sparse = dense.sparse_layers(r, family, n)
    r.use("linear_attn_config", "full_attention_interval", "mla_use_nope", "moe_router_activation_func", "head_dim",
          "use_grouped_topk", "num_nextn_predict_layers", "rope_theta", "rope_scaling")  # fmt: skip

    def make(signature: tuple[str, bool]) -> Layer:
        layer_type, has_experts = signature
        full = layer_type == FULL
        with r.layer("mla" if full else "kda"):
            block = mla.attention(r, family, None, turned=False) if full else None
            if block is not None:
                size = block.head_size_k
                block = dataclasses.replace(block, scale=size**-0.5)
            return Layer(
                attention=block,
                state=None if full else kda(r, family),
                mlp=None if has_experts else moe.mlp(r, family),
                moe=moe.moe(r, family, moe.STYLES["deepseek_v3"]) if has_experts else None,
                norms=dense.norms(r, family),
            )

    kinds, index = common.distinct(list(zip(types, sparse, strict=True)), make)
    return common.finish(r, family, kinds, index)


def _kimi_types(r: Reader, n: int) -> list[str]:
    full = r.maybe_list("linear_attn_config.full_attn_layers", int, windows.AT)
    if full is not None:
        return [FULL if i + 1 in full else LINEAR for i in range(n)]
    return [FULL if i and i % 4 == 0 else LINEAR for i in range(n)]


def kda(r: Reader, family: Family) -> State:
    """A Kimi delta attention mixer."""
    where = "linear_attn_config."
    heads = r.maybe_integer(where + "num_heads") or r.integer("linear_num_heads", "state.heads")
    size = r.maybe_integer(where + "head_dim") or r.integer("linear_head_dim", "state.head_size")
    kernel = r.maybe_integer(where + "short_conv_kernel_size") or r.integer("linear_conv_kernel_dim")
    norm = Norm("rms", common.norm(r, family).eps, gated=True)
    return State("kda", heads, size, size, key_heads=heads, conv_kernel=kernel, conv_channels=3 * heads * size,
                 norm=norm, activation=common.activation(r, family, "state.activation"))  # fmt: skip


def build_olmo_hybrid(r: Reader, family: Family) -> ArchSpec:
    """OLMo Hybrid: delta nets with norms before, attention with norms after its blocks."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = experts.named_types(r, n, KINDS)
    if types is None:
        types = [FULL if i % 4 == 3 else LINEAR for i in range(n)]
        types = types if FULL in types else [*types[:-1], FULL]
    _linear_sizes(r, hidden)
    rope = r.maybe_mapping("rope_parameters")
    turned = not (r.has("rope_parameters") and (rope or {}).get("rope_theta") is None)
    r.use("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")

    def make(layer_type: str) -> Layer:
        full = layer_type == FULL
        with r.layer("full" if full else "delta"):
            places = dataclasses.replace(family, places="post" if full else "pre")
            if full:
                return dense.layer(r, places, hidden, FULL, turned, False)
            net = dataclasses.replace(
                recurrent.delta_net(r, family),
                norm=Norm("rms", 1e-5, gated=True),
                fused_projections=False,
                doubled_beta=r.flag("linear_allow_neg_eigval", "state.doubled_beta", default=True),
            )
            return Layer(state=net, mlp=moe.mlp(r, family), norms=dense.norms(r, places))

    kinds, index = common.distinct(types, make)
    return common.finish(r, family, kinds, index)


def _linear_sizes(r: Reader, hidden: int) -> None:
    heads = r.integer("num_attention_heads")
    for key in ("linear_num_key_heads", "linear_num_value_heads"):
        if not r.has(key):
            r.settle(key, heads, "num_attention_heads")
    if not r.has("linear_key_head_dim"):
        size = int(0.75 * hidden / r.integer("linear_num_key_heads"))
        r.settle("linear_key_head_dim", size, "0.75 * hidden_size / linear_num_key_heads")
    if not r.has("linear_value_head_dim"):
        r.settle("linear_value_head_dim", 2 * r.integer("linear_key_head_dim"), "2 * linear_key_head_dim")


def mamba1(r: Reader, family: Family, activation: str | None, inner: Norm | None) -> State:
    """A mamba mixer under Jamba's and Zamba's names."""
    hidden = common.hidden_size(r)
    width = r.integer("mamba_expand", "state.heads", maximum=1024) * hidden
    rank = r.find("mamba_dt_rank", "state.dt_rank")[0]
    if rank in (None, "auto"):
        rank = math.ceil(hidden / 16)
    if type(rank) is not int or rank < 1:
        raise r.wrong("mamba_dt_rank", rank, "a positive integer or auto")
    return State(
        kind="mamba1",
        heads=width,
        head_size=1,
        state_size=r.integer("mamba_d_state", "state.state_size"),
        conv_kernel=r.integer("mamba_d_conv", "state.conv_kernel", maximum=4096),
        conv_channels=width,
        conv_bias=r.flag("use_conv_bias", "state.conv_bias"),
        proj_bias=r.flag("use_bias", "state.proj_bias"),
        dt_rank=rank,
        activation=activation,
        inner_norm=inner,
    )


def build_jamba(r: Reader, family: Family) -> ArchSpec:
    """Jamba: mamba and attention without positions, experts on every n-th layer."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    period, offset = r.integer("attn_layer_period", windows.AT), r.integer("attn_layer_offset", minimum=0)
    every, start = r.integer("expert_layer_period", "layers.moe"), r.integer("expert_layer_offset", minimum=0)
    routed = (r.maybe_integer("num_experts") or 1) > 1
    r.use("layer_types", "layers_block_type", "use_mamba_kernels", "use_mambapy", "mamba_inner_layernorms")
    signatures = [(i % period == offset, routed and i % every == start) for i in range(n)]

    def make(signature: tuple[bool, bool]) -> Layer:
        full, has_experts = signature
        with r.layer("full" if full else "mamba"):
            one = dense.layer(r, family, hidden, FULL, False, has_experts)
            if full:
                return one
            inner = Norm("rms", common.norm(r, family).eps)
            mixer = mamba1(r, family, common.activation(r, family, "state.activation"), inner)
            return dataclasses.replace(one, attention=None, state=mixer)

    kinds, index = common.distinct(signatures, make)
    return common.finish(r, family, kinds, index)


def build_minimax(r: Reader, family: Family) -> ArchSpec:
    """MiniMax 01: lightning attention beside attention; the residual is what the norm gives, times a factor."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = experts.named_types(r, n, KINDS) or [LINEAR if i % 2 else FULL for i in range(n)]
    window = windows.SLIDING if r.maybe_integer("sliding_window") else FULL
    factors = [r.maybe_decimal(f"{block}_{which}_factor") for block in ("full_attn", "linear_attn", "mlp")
               for which in ("alpha", "beta")]  # fmt: skip
    heads = r.integer("num_attention_heads")
    size = common.head_size(r, heads, hidden)
    r.use("block_size", "attn_type_list")

    def make(layer_type: str) -> Layer:
        full = layer_type == FULL
        with r.layer("full" if full else "lightning"):
            one = dense.layer(r, family, hidden, window, True, True)
            if full:
                return one
            act = common.activation(r, family, "state.activation")
            mixer = State("lightning", heads, size, size, key_heads=heads, norm=Norm("rms", 1e-6), activation=act)
            return dataclasses.replace(one, attention=None, state=mixer)

    kinds, index = common.distinct(types, make)
    spec = common.finish(r, family, kinds, index)
    told = ", ".join(f"{x:g}" for x in factors if x is not None)
    where = f"alpha and beta of full attention, linear attention and MLP: {told}"
    return dataclasses.replace(spec, beyond=(Beyond("residual after the norm", "MiniMaxDecoderLayer", where),))


MUP = ("attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
       "mlp_multipliers", "ssm_multipliers")  # fmt: skip


def build_falcon_h1(r: Reader, family: Family) -> ArchSpec:
    """Falcon H1: attention and mamba2 side by side in every layer, with a factor on nearly every product."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    key = r.maybe_decimal("key_multiplier", "attention.scale")
    r.use("layer_types", "layers_block_type", "mamba_chunk_size", "mamba_use_mlp", "mlp_expansion_factor",
          "time_step_limit", "mamba_expand", *MUP)  # fmt: skip
    with r.layer("hybrid"):
        one = dense.layer(r, family, hidden, FULL, True, False)
        assert one.attention is not None
        assert one.attention.scale is not None
        scale = one.attention.scale * (1.0 if key is None else key)
        layer = dataclasses.replace(experts.with_attention(one, scale=scale), state=falcon_mamba2(r, family, hidden))
    spec = common.finish(r, family, (layer,), (0,) * n)
    extra = 0
    if r.flag("projectors_bias") != layer.state.proj_bias:  # type: ignore[union-attr]
        extra = n * (hidden if r.flag("projectors_bias") else -hidden)
    where = "in every layer, on projections of mamba, attention's input and output, gate and down"
    return dataclasses.replace(
        spec,
        beyond=(
            Beyond("attention beside mamba2", "FalconH1DecoderLayer", "every layer", extra),
            Beyond("mup multipliers", "FalconH1Mixer", where),
        ),
    )


def falcon_mamba2(r: Reader, family: Family, hidden: int) -> State:
    """Falcon H1's mamba2, whose norm is optional."""
    heads, size = r.integer("mamba_num_heads", "state.heads"), r.integer("mamba_head_dim", "state.head_size")
    width = r.maybe_integer("mamba_d_ssm") or int(r.integer("mamba_expand", maximum=1024) * hidden)
    if heads * size != width:
        raise r.wrong("mamba_num_heads", heads, f"heads times head size {size} equal to the inner width {width}")
    state, groups = r.integer("ssm_state_size", "state.state_size"), r.integer("n_groups", "state.groups")
    normed = r.flag("mamba_rms_norm", "state.norm")
    r.use("mamba_norm_before_gate")
    norm = Norm("rms", common.norm(r, family).eps, gated=True, groups=groups) if normed else None
    return recurrent.mamba2_state(r, heads, size, state, groups, norm, common.activation(r, family, "state.activation"))


def build_recurrent_gemma(r: Reader, family: Family) -> ArchSpec:
    """RecurrentGemma: gated linear recurrences, and attention in a window on every third layer."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    blocks = r.maybe_list("block_types", str, windows.AT) or ["recurrent", "recurrent", "attention"]
    if set(blocks) - {"recurrent", "attention"}:
        raise r.wrong("block_types", blocks, "recurrent and attention")
    heads = r.integer("num_attention_heads")
    width = r.maybe_integer("lru_width", "state.heads") or hidden
    if width % heads:
        raise r.wrong("lru_width", width, f"a multiple of the {heads} heads")
    half = r.integer("intermediate_size", "mlp.size", maximum=common.MAX_WIDTH) // 2
    kernel = r.integer("conv_kernel", "state.conv_kernel", maximum=4096)

    def make(kind: str) -> Layer:
        with r.layer(kind):
            one = dense.layer(r, family, hidden, windows.SLIDING, True, False)
            assert one.mlp is not None
            one = dataclasses.replace(one, mlp=dataclasses.replace(one.mlp, size=half))
            if kind == "attention":
                return one
            act = common.activation(r, family, "state.activation")
            mixer = State("rg_lru", heads, width // heads, 1, conv_kernel=kernel, conv_channels=width, conv_bias=True,
                          proj_bias=True, activation=act)  # fmt: skip
            return dataclasses.replace(one, attention=None, state=mixer)

    r.use("w_init_variance_scale", "final_w_init_variance_scale", "head_dim")
    kinds, index = common.distinct([blocks[i % len(blocks)] for i in range(n)], make)
    spec = common.finish(r, family, kinds, index)
    rounded = round_bfloat16(math.sqrt(hidden))
    return dataclasses.replace(spec, embedding=dataclasses.replace(spec.embedding, multiplier=rounded))


def round_bfloat16(value: float) -> float:
    """``value`` to the nearest bfloat16 (8 bits), ties to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


def build_zamba(r: Reader, family: Family) -> ArchSpec:
    """Zamba: mamba layers; a shared block of attention and MLP, on the residual beside the embedding, feeds some."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = experts.named_types(r, n, {**KINDS, "hybrid": "hybrid"})
    if types is None:
        period, offset = r.integer("attn_layer_period", windows.AT), r.integer("attn_layer_offset", minimum=0)
        rest = ["hybrid" if i % period == offset else LINEAR for i in range(n - 3)]
        types = [LINEAR, LINEAR, "hybrid", *rest][:n]
    mixer = mamba1(r, family, r.maybe_text("hidden_mamba_act", "state.activation"), None)
    heads = r.integer("n_mamba_heads")
    r.use("attn_layer_period", "attn_layer_offset", "use_mamba_kernels")
    spec = _shared_blocks(r, family, hidden, types, mixer, 1, False)
    if heads == 1:
        return spec
    return dataclasses.replace(
        spec, beyond=(*spec.beyond, Beyond(f"mamba in {heads} heads", "ZambaMambaMixer", "every layer"))
    )


def _shared_blocks(
    r: Reader, family: Family, hidden: int, types: list[str], mixer: State, blocks: int, turned: bool
) -> ArchSpec:
    """The layers of both generations: hybrid ones take the ``blocks`` shared blocks in turn."""
    width = r.maybe_integer("attention_hidden_size", maximum=common.MAX_WIDTH) or 2 * hidden
    hybrid = [i for i, t in enumerate(types) if t == "hybrid"]
    owners = {layer: hybrid[k % blocks] for k, layer in enumerate(hybrid)}
    one_norm = common.norm(r, family)

    def make(signature: tuple[bool, int | None]) -> Layer:
        shared, owner = signature
        with r.layer("hybrid" if shared else "mamba"):
            if not shared:
                return Layer(state=mixer, norms=LayerNorms(pre_mixer=one_norm))
            one = dense.layer(r, family, hidden, FULL, turned, False)
            assert one.attention is not None
            size = one.attention.head_size_k
            r.derived("attention.scale", "1 / sqrt(head size / 2)")
            one = experts.with_attention(one, input_size=width, scale=(size / 2) ** -0.5)
            return dataclasses.replace(one, state=mixer, weights_of=owner)

    signatures = [(t == "hybrid", owners[i] if owners.get(i, i) != i else None) for i, t in enumerate(types)]
    kinds, index = common.distinct(signatures, make)
    spec = common.finish(r, family, kinds, index)
    extra = min(blocks, len(hybrid)) * width + len(hybrid) * hidden * hidden
    where = "layers " + ", ".join(map(str, hybrid))
    name = "Zamba2HybridLayer" if family.model_type == "zamba2" else "ZambaHybridLayer"
    return dataclasses.replace(
        spec, beyond=(Beyond("shared block on residual and embedding", name, where, extra),) if hybrid else ()
    )


ZAMBA2_TYPES = [LINEAR, *([LINEAR] * 5 + ["hybrid"]) * 7, *[LINEAR] * 4, "hybrid", *[LINEAR] * 3, "hybrid",
                *[LINEAR] * 2]  # fmt: skip


def build_zamba2(r: Reader, family: Family) -> ArchSpec:
    """Zamba 2: mamba2 layers, shared blocks in turn, each use with low-rank changes of its own."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = experts.named_types(r, n, {**KINDS, "hybrid": "hybrid"}, "layers_block_type") or ZAMBA2_TYPES
    if len(types) != n:
        raise r.wrong("layers_block_type", None, f"linear_attention or hybrid for each of the {n} layers")
    if not r.has("intermediate_size"):
        r.settle("intermediate_size", 4 * hidden, "4 * hidden_size")
    heads, groups = r.integer("n_mamba_heads", "state.heads"), r.integer("mamba_ngroups", "state.groups")
    inner = int(r.integer("mamba_expand", maximum=1024) * hidden)
    if inner % heads:
        raise r.wrong("n_mamba_heads", heads, f"a divisor of the inner width {inner}")
    bias = r.flag("add_bias_linear", "state.proj_bias")
    state = r.integer("mamba_d_state", "state.state_size")
    r.settle("conv_kernel", r.integer("mamba_d_conv", maximum=4096), "mamba_d_conv")
    r.settle("use_conv_bias", True, "the reference, whatever use_conv_bias says")
    r.settle("use_bias", bias, "add_bias_linear")
    norm = Norm("rms", 1e-5, gated=True, groups=groups)
    mixer = recurrent.mamba2_state(r, heads, inner // heads, state, groups, norm, "silu")
    blocks, rank = r.integer("num_mem_blocks"), r.integer("adapter_rank")
    width = 2 * hidden
    r.settle("attention_hidden_size", width, "2 * hidden_size")
    r.settle("head_dim", width // r.integer("num_attention_heads"), "2 * hidden_size / num_attention_heads")
    turned = r.flag("use_mem_rope", "attention.positions.kind")
    spec = _shared_blocks(r, family, hidden, types, mixer, blocks, turned)
    r.use("kv_channels", "num_query_groups", "hybrid_layer_ids", "mamba_headdim", "use_mem_eff_path",
          "use_mamba_kernels", "use_long_context", "layer_types", "rope_parameters", "rope_theta",
          "use_shared_mlp_adapter")  # fmt: skip
    uses, size = types.count("hybrid"), r.integer("intermediate_size", maximum=common.MAX_WIDTH)
    if not uses:
        return spec
    extra = uses * rank * (hidden + 2 * size)
    if r.flag("use_shared_attention_adapter"):
        extra += uses * 3 * 2 * width * rank
    adapters = Beyond("low-rank changes of shared weights", "Zamba2AttentionDecoderLayer", "each hybrid layer", extra)
    return dataclasses.replace(spec, beyond=(*spec.beyond, adapters))
