"""Mamba 2 and attention layers, each with a feed-forward part: Granite 4 and Bamba."""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import MLP, Attention, Layer, MoE, Norm, Positions, State
from onboard.arch.spec import ArchSpec
from onboard.facts.families import common, dense, moe, recurrent, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

MAMBA = ("mamba", "linear_attention")


def build_granite(r: Reader, family: Family) -> ArchSpec:
    """Granite 4: a shared MLP on every layer, beside experts where there are any; rope only when it is asked for."""
    n = common.layer_count(r)
    types = windows.explicit_types(r, n) or ["mamba"] * n
    turned = r.maybe_text("position_embedding_type", "attention.positions.kind") == "rope"
    r.use("init_method", "normalization_function")
    return _build(r, family, types, turned)


def build_bamba(r: Reader, family: Family) -> ArchSpec:
    """Bamba: attention on the layers that are listed, half of each head turned."""
    n = common.layer_count(r)
    types = windows.explicit_types(r, n)
    listed = r.maybe_list("attn_layer_indices", int, "layers.kinds" if types is None else None) or ()
    r.settle("partial_rotary_factor", 0.5, "the family's reference")
    return _build(r, family, types or [windows.FULL if i in set(listed) else "mamba" for i in range(n)], True)


def _build(r: Reader, family: Family, types: list[str], turned: bool) -> ArchSpec:
    hidden = common.hidden_size(r)
    _head_size(r, hidden)

    def make(layer_type: str) -> Layer:
        if layer_type not in (windows.FULL, *MAMBA):
            raise r.wrong("layer_types", layer_type, "mamba or full attention")
        full = layer_type == windows.FULL
        with r.layer("full" if full else "mamba"):
            return Layer(
                attention=_attention(r, family, hidden, turned) if full else None,
                state=None if full else _state(r, family),
                mlp=_mlp(r, family),
                moe=_experts(r, family),
                norms=dense.norms(r, family),
                residual_scale=common.residual_scale(r, family),
            )

    r.use("mamba_expand", "mamba_chunk_size", "mamba_d_head", "num_local_experts", "num_experts_per_tok",
          "intermediate_size", "z_loss_coefficient", "rope_theta", "rope_scaling", "rope_parameters")  # fmt: skip
    kinds, index = common.distinct(types, make)
    return common.finish(r, family, kinds, index)


def _head_size(r: Reader, hidden: int) -> None:
    """``mamba_d_head`` "auto" or absent: the inner width over the heads."""
    if r.find("mamba_head_dim")[0] in (None, "auto"):
        inner, heads = r.integer("mamba_expand", maximum=1024) * hidden, r.integer("mamba_num_heads")
        if inner % heads:
            raise r.wrong("mamba_num_heads", heads, f"a divisor of the inner width {inner}")
        r.settle("mamba_head_dim", inner // heads, "mamba_expand * hidden_size / mamba_n_heads")


def _attention(r: Reader, family: Family, hidden: int, turned: bool) -> Attention:
    block = dense.attention(r, family, hidden, windows.FULL, turned)
    return block if turned else dataclasses.replace(block, positions=Positions("none"))


def _state(r: Reader, family: Family) -> State:
    state = recurrent.mamba2(r, family)
    eps = common.norm(r, family).eps
    return dataclasses.replace(
        state, norm=Norm("rms", eps, gated=True), activation=common.activation(r, family, "state.activation")
    )


def _mlp(r: Reader, family: Family) -> MLP:
    if family.model_type == "bamba":
        return moe.mlp(r, family)
    return moe.mlp(r, family, r.integer("shared_intermediate_size", "mlp.size", maximum=common.MAX_WIDTH))


def _experts(r: Reader, family: Family) -> MoE | None:
    if family.moe is None or not r.maybe_integer("num_experts", "moe.experts", minimum=0):
        return None
    return moe.moe(r, family, moe.STYLES[family.moe])
