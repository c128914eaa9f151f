"""Decoders without attention: xLSTM, Mamba and Mamba 2."""

from __future__ import annotations

import dataclasses
import math

from onboard.arch.blocks import MLP, Layer, LayerNorms, Norm, State
from onboard.arch.spec import ArchSpec
from onboard.facts.families import common, dense
from onboard.facts.families.family import Family
from onboard.facts.families.recurrent import mamba2_state
from onboard.facts.reader import Reader


def build_xlstm(r: Reader, family: Family) -> ArchSpec:
    """mLSTM blocks, each followed by a gated MLP."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    heads = r.integer("num_attention_heads", "state.heads", maximum=common.MAX_WIDTH)
    bias = r.flag("use_bias", "state.proj_bias")
    qk = int(hidden * r.decimal("qk_dim_factor", "state.state_size", minimum=0.0))
    v = int(hidden * r.decimal("v_dim_factor", "state.head_size", minimum=0.0))
    if not qk or not v or qk % heads or v % heads:
        raise r.wrong("num_attention_heads", heads, f"a divisor of the widths {qk} (q, k) and {v} (v)")
    eps = r.decimal("norm_eps", "norms.eps", minimum=0.0)
    multiple = r.integer("ffn_round_up_to_multiple_of")
    size = math.ceil(hidden * r.decimal("ffn_proj_factor", "mlp.size", minimum=0.0) / multiple) * multiple
    if not 0 < size <= common.MAX_WIDTH:
        raise r.wrong("ffn_proj_factor", size, f"a width from 1 to {common.MAX_WIDTH}")
    one = Norm("rms", eps, bias=bias)
    r.use("embedding_dim", "num_blocks", "head_dim", "mlstm_round_up_to_multiple_of", "eps", "cell_norm_eps",
          "weight_mode", "add_out_norm", "add_post_blocks_norm", "add_post_norm", "add_qk_norm")  # fmt: skip
    layer = Layer(
        state=State(
            kind="mlstm",
            heads=heads,
            head_size=v // heads,
            state_size=qk // heads,
            key_heads=heads,
            proj_bias=bias,
            norm=Norm("layernorm", eps, bias=bias),
            gate_softcap=r.maybe_decimal("gate_soft_cap", "state.gate_softcap"),
        ),
        mlp=MLP(size, "silu", True, bias, bias),
        norms=LayerNorms(pre_mixer=one, pre_mlp=one),
    )
    r.known("mlp.activation", "mlp.gated", "norms.places")
    return common.finish(r, family, (layer,), (0,) * n, final_norm=Norm("rms", eps))


def build_mamba(r: Reader, family: Family) -> ArchSpec:
    """Mamba (1 or 2) blocks and nothing else."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    state = _mamba2(r, family, hidden) if family.model_type == "mamba2" else _mamba1(r, family, hidden)
    if family.model_type == "falcon_mamba":
        eps = r.decimal("mixer_rms_eps", "state.inner_norm.eps", minimum=0.0)
        state = dataclasses.replace(state, inner_norm=Norm("rms", eps, weight=False))
    wider = r.flag("residual_in_fp32", "residual_dtype")
    r.use("rescale_prenorm_residual", "time_step_scale", "time_step_init_scheme", "use_mambapy", "intermediate_size",
          "num_attention_heads", "norm_before_gate", "rms_norm", "d_inner", "time_step_rank")  # fmt: skip
    layer = Layer(state=state, norms=LayerNorms(pre_mixer=dense.norms(r, family).pre_mixer))
    spec = common.finish(r, family, (layer,), (0,) * n)
    return dataclasses.replace(spec, residual_dtype="float32" if wider else None)


def _inner(r: Reader, hidden: int) -> int:
    size = int(hidden * r.decimal("expand", "state.heads", minimum=0.0))
    if not 0 < size <= common.MAX_WIDTH:
        raise r.wrong("expand", size, f"an inner width from 1 to {common.MAX_WIDTH}")
    return size


def _mamba1(r: Reader, family: Family, hidden: int) -> State:
    inner = _inner(r, hidden)
    rank = r.find("time_step_rank", "state.dt_rank")[0]
    if rank in (None, "auto"):
        rank = math.ceil(hidden / 16)
    if type(rank) is not int or rank < 1:
        raise r.wrong("time_step_rank", rank, "a positive integer or auto")
    return State(
        kind="mamba1",
        heads=inner,
        head_size=1,
        state_size=r.integer("state_size", "state.state_size"),
        conv_kernel=r.integer("conv_kernel", "state.conv_kernel", maximum=4096),
        conv_channels=inner,
        conv_bias=r.flag("use_conv_bias", "state.conv_bias"),
        proj_bias=r.flag("use_bias", "state.proj_bias"),
        dt_rank=rank,
        activation=common.activation(r, family, "state.activation"),
    )


def _mamba2(r: Reader, family: Family, hidden: int) -> State:
    heads, size = r.integer("num_heads", "state.heads"), r.integer("head_dim", "state.head_size")
    if heads * size != _inner(r, hidden):
        raise r.wrong("num_heads", heads, f"heads times head size {size} equal to expand times hidden size")
    groups, state = r.integer("n_groups", "state.groups"), r.integer("state_size", "state.state_size")
    norm = Norm("rms", common.norm(r, family).eps, gated=True)
    return mamba2_state(r, heads, size, state, groups, norm, common.activation(r, family, "state.activation"))
