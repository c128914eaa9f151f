"""Decoders with a recurrent or convolution state beside attention: Qwen3-Next and 3.5, Nemotron-H, LFM2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from onboard.arch.blocks import MLP, Attention, Layer, LayerNorms, MoE, Norm, Positions, State
from onboard.arch.spec import ArchSpec
from onboard.facts.families import common, dense, moe, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

Mixer = Callable[[Reader, Family], State]


def build_qwen(r: Reader, family: Family) -> ArchSpec:
    """Gated delta nets with gated full attention on every n-th layer."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = windows.explicit_types(r, n)
    if types is None:
        interval = r.integer("full_attention_interval", "layers.kinds")
        types = [windows.FULL if (i + 1) % interval == 0 else "linear_attention" for i in range(n)]
    r.use("full_attention_interval")
    sparse = dense.sparse_layers(r, family, n)
    return _hybrid(r, family, hidden, list(zip(types, sparse, strict=True)), "linear_attention", delta_net, gate=True)


def build_lfm2(r: Reader, family: Family) -> ArchSpec:
    """Short convolutions with full attention on some layers."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = windows.explicit_types(r, n)
    chosen = r.maybe_list("full_attn_idxs", int, "layers.kinds" if types is None else None)
    if types is None:
        full = set(range(n) if chosen is None else chosen)
        types = [windows.FULL if i in full else "conv" for i in range(n)]
    spec = _hybrid(r, family, hidden, [(t, False) for t in types], "conv", short_conv, gate=False)
    size = _lfm2_width(r)
    kinds = tuple(dataclasses.replace(k, mlp=dataclasses.replace(k.mlp, size=size)) for k in spec.kinds if k.mlp)
    r.use("block_dim", "conv_dim", "conv_dim_out", "num_heads", "block_use_swiglu", "use_pos_enc", "block_norm_eps")
    return dataclasses.replace(spec, kinds=kinds)


def build_lfm2_moe(r: Reader, family: Family) -> ArchSpec:
    """LFM2 with experts after the first ``num_dense_layers`` layers."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = windows.explicit_types(r, n)
    if types is None:
        raise r.wrong("layer_types", None, f"conv or full_attention for each of the {n} layers")
    first = r.maybe_integer("num_dense_layers", "layers.moe", minimum=0) or 0
    return _hybrid(r, family, hidden, [(t, i >= first) for i, t in enumerate(types)], "conv", short_conv, gate=False)


def _lfm2_width(r: Reader) -> int:
    """The MLP's width: two thirds of what is written, times a factor, up to a multiple, unless that is switched off."""
    size = r.integer("intermediate_size", "mlp.size", maximum=common.MAX_WIDTH)
    adjust = r.flag("block_auto_adjust_ff_dim", default=True)
    factor, multiple = r.maybe_decimal("block_ffn_dim_multiplier"), r.integer("block_multiple_of")
    if not adjust:
        return size
    size = int(2 * size / 3)
    if factor is not None:
        size = int(factor * size)
        size = multiple * ((size + multiple - 1) // multiple)
    r.derived("mlp.size", "2/3 of block_ff_dim, up to a multiple of block_multiple_of")
    if size < 1:
        raise r.wrong("block_ffn_dim_multiplier", factor, "a factor that leaves a positive width")
    return size


def _hybrid(
    r: Reader, family: Family, hidden: int, signatures: list[tuple[str, bool]], name: str, mixer: Mixer, *, gate: bool
) -> ArchSpec:
    def make(signature: tuple[str, bool]) -> Layer:
        layer_type, experts = signature
        if layer_type not in (windows.FULL, name):
            raise r.wrong("layer_types", layer_type, f"full_attention or {name}")
        full = layer_type == windows.FULL
        with r.layer("full" if full else name):
            block = dense.attention(r, family, hidden, layer_type, True) if full else None
            if block is not None and gate:
                block = dataclasses.replace(block, output_gate="channel")
                r.known("attention.output_gate")
            return Layer(
                attention=block,
                state=None if full else mixer(r, family),
                mlp=None if experts else moe.mlp(r, family),
                moe=moe.moe(r, family, moe.STYLES[family.moe]) if experts and family.moe else None,
                norms=dense.norms(r, family),
            )

    r.use("attn_output_gate")
    kinds, index = common.distinct(signatures, make)
    return common.finish(r, family, kinds, index)


def delta_net(r: Reader, family: Family) -> State:
    """A gated delta net: value heads carry a state [key size, value size]."""
    v_heads = r.integer("linear_num_value_heads", "state.heads", maximum=common.MAX_WIDTH)
    k_heads = r.integer("linear_num_key_heads", "state.key_heads", maximum=common.MAX_WIDTH)
    if v_heads % k_heads:
        raise r.wrong("linear_num_key_heads", k_heads, f"a divisor of the {v_heads} value heads")
    k_size = r.integer("linear_key_head_dim", "state.state_size", maximum=common.MAX_WIDTH)
    v_size = r.integer("linear_value_head_dim", "state.head_size", maximum=common.MAX_WIDTH)
    kernel = r.integer("linear_conv_kernel_dim", "state.conv_kernel", maximum=4096)
    eps = common.norm(r, family).eps
    return State(
        kind="gated_delta_net",
        heads=v_heads,
        head_size=v_size,
        state_size=k_size,
        key_heads=k_heads,
        conv_kernel=kernel,
        conv_channels=2 * k_heads * k_size + v_heads * v_size,
        norm=Norm("rms", eps, gated=True),
        activation=common.activation(r, family),
        fused_projections=family.model_type == "qwen3_next",
    )


def short_conv(r: Reader, family: Family) -> State:
    """LFM2's gated short convolution."""
    hidden = common.hidden_size(r)
    kernel = r.integer("conv_L_cache", "state.conv_kernel", maximum=4096)
    bias = r.flag("conv_bias", "state.conv_bias")
    return State("short_conv", heads=1, head_size=hidden, state_size=0, conv_kernel=kernel, conv_channels=hidden,
                 conv_bias=bias, proj_bias=bias)  # fmt: skip


BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
ALSO = {"linear_attention": "mamba", "full_attention": "attention"}


def build_nemotron(r: Reader, family: Family) -> ArchSpec:
    """One mixer a layer: a mamba2, an attention without positions, an MLP or experts."""
    types = nemotron_types(r)
    hidden = common.hidden_size(r)
    r.use("num_hidden_layers", "expand", "time_step_rank", "rope_theta", "partial_rotary_factor", "sliding_window",
          "mamba_proj_bias", "norm_eps", "rms_norm_eps", "n_group", "topk_group", "moe_latent_size",
          "moe_intermediate_size", "rope_parameters", "rope_scaling")  # fmt: skip
    wider = r.flag("residual_in_fp32", "residual_dtype")

    def make(name: str) -> Layer:
        with r.layer(name):
            one = common.norm(r, family)
            mixer = name in ("mamba", "attention")
            return Layer(
                attention=nemotron_attention(r, family, hidden) if name == "attention" else None,
                state=mamba2(r, family) if name == "mamba" else None,
                mlp=moe.mlp(r, family) if name == "mlp" else None,
                moe=nemotron_moe(r, family) if name == "moe" else None,
                norms=LayerNorms(pre_mixer=one) if mixer else LayerNorms(pre_mlp=one),
            )

    kinds, index = common.distinct(types, make)
    spec = common.finish(r, family, kinds, index)
    return dataclasses.replace(spec, residual_dtype="float32" if wider else None)


def nemotron_types(r: Reader) -> list[str]:
    """The block of each layer, by list or by pattern; the list's length is the number of layers."""
    at = "layers.kinds"
    named = r.maybe_list("layer_types", str, at)
    pattern = r.maybe_text("hybrid_override_pattern", at if named is None else None)
    if named is None and pattern is None:
        raise r.wrong("hybrid_override_pattern", None, "a pattern of M, *, - and E, or layers_block_type")
    raw = list(named) if named is not None else [BLOCKS.get(c, c) for c in pattern or ""]
    types = [ALSO.get(t, t) for t in raw]
    if not types or set(types) - set(BLOCKS.values()) or len(types) > common.MAX_LAYERS:
        raise r.wrong("layer_types" if named else "hybrid_override_pattern", sorted(set(raw))[:8],
                      "blocks of mamba, attention, mlp and moe")  # fmt: skip
    count = r.maybe_integer("num_hidden_layers", minimum=0)
    if r.has("num_hidden_layers") and count != len(types):
        r.warn(f"num_hidden_layers={count} contradicts {len(types)} named blocks; the blocks win")
    r.derived("layers", "the number of named blocks")
    return types


def nemotron_attention(r: Reader, family: Family, hidden: int) -> Attention:
    """Attention without positions or biases (the reference ignores attention_bias)."""
    block = dense.attention(r, family, hidden, windows.FULL, False)
    r.use("attention_bias")
    return dataclasses.replace(block, positions=Positions("none"))


def nemotron_moe(r: Reader, family: Family) -> MoE:
    """Experts that are not gated, in a narrower width if there is one, and a shared expert of its own width."""
    block = moe.moe(r, family, moe.STYLES["deepseek_v3"])
    width = r.integer("moe_shared_expert_intermediate_size", "moe.shared", maximum=common.MAX_WIDTH)
    bias = r.flag("mlp_bias", "moe.bias")
    return dataclasses.replace(
        block,
        up_bias=False,
        shared=MLP(width, block.activation, gated=False, up_bias=bias, down_bias=bias),
        latent_size=r.maybe_integer("moe_latent_size", "moe.latent_size"),
        latent_bias=bias,
    )


def mamba2(r: Reader, family: Family) -> State:
    """A mamba2 mixer under Nemotron-H's names."""
    heads, size = r.integer("mamba_num_heads", "state.heads"), r.integer("mamba_head_dim", "state.head_size")
    state, groups = r.integer("ssm_state_size", "state.state_size"), r.integer("n_groups", "state.groups")
    norm = Norm("rms", common.norm(r, family).eps, gated=True, groups=groups)
    return mamba2_state(r, heads, size, state, groups, norm, r.maybe_text("mamba_hidden_act", "state.activation"))


def mamba2_state(
    r: Reader, heads: int, size: int, state: int, groups: int, norm: Norm | None, activation: str | None
) -> State:
    """A mamba2 mixer of these sizes; convolution and biases have one spelling in every family."""
    if heads % groups:
        raise r.wrong("n_groups", groups, f"a divisor of the {heads} heads")
    return State(
        kind="mamba2",
        heads=heads,
        head_size=size,
        state_size=state,
        groups=groups,
        conv_kernel=r.integer("conv_kernel", "state.conv_kernel", maximum=4096),
        conv_channels=heads * size + 2 * groups * state,
        conv_bias=r.flag("use_conv_bias", "state.conv_bias"),
        proj_bias=r.flag("use_bias", "state.proj_bias"),
        norm=norm,
        activation=activation,
    )
