"""Families whose settings need a step before the dense builder: GPT-2 and its kin, Falcon, MPT, gpt-oss, ChatGLM."""

from __future__ import annotations

import dataclasses
import math

from onboard.arch.blocks import Layer, MoE
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.families import common, dense, mla, moe, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader
from onboard.facts.source import Source


def four_times(r: Reader) -> None:
    """The MLP is four times the hidden size where nothing else is written."""
    if not r.has("intermediate_size"):
        r.settle("intermediate_size", 4 * common.hidden_size(r), "4 * hidden size")


def build_gpt2(r: Reader, family: Family) -> ArchSpec:
    """GPT-2, BLOOM, GPT-J: the MLP's width follows from the hidden size; GPT-2 may scale its scores otherwise."""
    four_times(r)
    if not r.flag("scale_attn_weights", default=True):
        family = dataclasses.replace(family, scale="one")
    spec = dense.build(r, family)
    if not r.flag("scale_attn_by_inverse_layer_idx"):
        return spec
    r.overrule("attention.scale", Source("derived", "1 / sqrt(head size) / (layer + 1)"))
    return common.regroup(spec, [_divided(one, i + 1) for i, one in enumerate(spec)])


def _divided(layer: Layer, by: int) -> Layer:
    attention = layer.attention
    assert attention is not None and attention.scale is not None
    return dataclasses.replace(layer, attention=dataclasses.replace(attention, scale=attention.scale / by))


def build_bigcode(r: Reader, family: Family) -> ArchSpec:
    """GPT-BigCode: one KV head when ``multi_query``, else one for each query head."""
    multi = r.flag("multi_query", "attention.kv_heads", default=True)
    r.settle("num_key_value_heads", 1 if multi else r.integer("num_attention_heads"), "multi_query")
    return build_gpt2(r, family)


def build_bloom(r: Reader, family: Family) -> ArchSpec:
    """BLOOM: ``apply_residual_connection_post_layernorm`` changes what the blocks' outputs are added to."""
    spec = build_gpt2(r, family)
    if not r.flag("apply_residual_connection_post_layernorm"):
        return spec
    where = "every layer: blocks are added to the norm's output, not to its input"
    return dataclasses.replace(spec, beyond=(Beyond("residual after the norm", "BloomBlock", where),))


def build_neox(r: Reader, family: Family) -> ArchSpec:
    """GPT-NeoX and StableLM: one switch decides between parallel and sequential residuals."""
    parallel = r.flag("use_parallel_residual", "norms.places")
    if family.model_type == "gpt_neox":
        return dense.build(r, dataclasses.replace(family, places="parallel2" if parallel else "pre"))
    return dense.build(r, dataclasses.replace(family, places="parallel" if parallel else "pre"))


def build_falcon(r: Reader, family: Family) -> ArchSpec:
    """Falcon: KV heads, norms and positions follow from three switches."""
    new = r.flag("new_decoder_architecture")
    multi, parallel = r.flag("multi_query", default=True), r.flag("parallel_attn", "norms.places", default=True)
    n = r.integer("num_attention_heads", "attention.heads")
    written = r.maybe_integer("num_key_value_heads")
    if new:
        r.settle("num_key_value_heads", written or n, "new_decoder_architecture, num_kv_heads")
    else:
        r.settle("num_key_value_heads", 1 if multi else n, "multi_query")
        if multi and written not in (None, 1, n):
            r.warn(f"num_kv_heads={written} contradicts multi_query; multi_query wins (1 KV head)")
    two = r.maybe_integer("num_ln_in_parallel_attn", minimum=1)
    if two is None:
        two = 2 if new else 1
    if r.flag("alibi", "attention.positions.kind"):
        family = dataclasses.replace(family, positions="alibi")
        r.use("rope_parameters", "rope_theta", "rope_scaling")
    if r.flag("apply_residual_connection_post_layernorm"):
        raise r.wrong("apply_residual_connection_post_layernorm", True, "false")
    four_times(r)
    places = "pre" if not (parallel or new) else ("parallel2" if new and two == 2 else "parallel")
    spec = dense.build(r, dataclasses.replace(family, places=places))
    if family.positions != "alibi":
        return spec
    where = "every layer: biases are rounded to bfloat16 and divided by the root of the head size"
    return dataclasses.replace(spec, beyond=(Beyond("scaled alibi", "FalconAttention", where),))


def build_mpt(r: Reader, family: Family) -> ArchSpec:
    """MPT: an expansion ratio for the MLP, ALiBi, and options nested in ``attn_config``."""
    ratio = r.maybe_integer("expansion_ratio", "mlp.size") or 4
    r.settle("intermediate_size", ratio * common.hidden_size(r), "expansion_ratio * d_model")
    r.use("attn_config", "no_bias", "learned_pos_emb", "norm_type", "init_config", "init_device", "logit_scale",
          "embedding_fraction", "verbose")  # fmt: skip
    options = r.text.get("attn_config")
    options = options if isinstance(options, dict) else {}
    if options.get("qk_ln"):
        raise r.wrong("attn_config", "qk_ln", "qk_ln false: the reference has no such norm")
    if options.get("alibi") is False:
        r.warn("attn_config.alibi=false is not honoured by the reference, which always uses ALiBi; ALiBi wins")
    scale = options.get("softmax_scale")
    if scale is not None:
        r.settle("attention_multiplier", r.number("attn_config", scale, 1e-12), "attn_config.softmax_scale")
        family = dataclasses.replace(family, scale="attention_multiplier")
    return dense.build(r, family)


def build_dbrx(r: Reader, family: Family) -> ArchSpec:
    """DBRX: everything about attention and experts is nested."""
    options = [r.maybe_mapping(key) or {} for key in ("attn_config", "ffn_config")]
    if options[1].get("moe_normalize_expert_weights", 1) != 1:
        raise r.wrong("ffn_config", options[1]["moe_normalize_expert_weights"], "moe_normalize_expert_weights of 1")
    act = options[1].get("ffn_act_fn")
    if isinstance(act, dict):
        r.settle("hidden_act", act.get("name"), "ffn_config.ffn_act_fn.name")
    return dense.build(r, family)


def build_chatglm(r: Reader, family: Family) -> ArchSpec:
    """ChatGLM 3 and 4 under their old names; half of each head turns, in neighbouring pairs."""
    n = r.integer("num_attention_heads")
    if not r.flag("multi_query_attention"):
        r.settle("num_key_value_heads", n, "multi_query_attention")
    if not r.flag("rmsnorm", default=True) or not r.flag("post_layer_norm", default=True):
        raise r.wrong("rmsnorm", False, "true: the family's layers use RMSNorm and a final norm")
    if r.flag("apply_residual_connection_post_layernorm"):
        raise r.wrong("apply_residual_connection_post_layernorm", True, "false")
    ratio = r.maybe_decimal("rope_ratio", "attention.positions.base", minimum=1e-6) or 1.0
    r.settle("rope_theta", 10000.0 * ratio, "10000 * rope_ratio")
    qkv = r.flag("add_qkv_bias", "attention.q_bias") or r.flag("add_bias_linear")
    r.use("kv_channels", "apply_query_key_layer_scaling", "fp32_residual_connection", "original_rope")
    return dense.build(r, dataclasses.replace(family, q_bias=qkv, k_bias=qkv, v_bias=qkv))


def build_gpt_oss(r: Reader, family: Family) -> ArchSpec:
    """gpt-oss: sinks, biases everywhere, clamped experts with a biased router."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    types = windows.attention_types(r, family, n)

    def make(layer_type: str) -> Layer:
        with r.layer(layer_type.split("_")[0]):
            block = dense.attention(r, family, hidden, layer_type, True)
            r.known("attention.sinks")
            return Layer(
                attention=dataclasses.replace(block, sinks=True),
                moe=_gpt_oss_experts(r, family),
                norms=dense.norms(r, family),
            )

    r.use("initial_context_length")
    kinds, index = common.distinct(types, make)
    return common.finish(r, family, kinds, index)


def _gpt_oss_experts(r: Reader, family: Family) -> MoE:
    r.known("moe.bias", "moe.router.bias")
    style = moe.Style(size="intermediate_size", router_bias=True)
    block = moe.moe(r, family, style)
    return dataclasses.replace(block, up_bias=True, down_bias=True, clamp=moe.swiglu_clamp(r, gpt_oss=True))


def build_phi3(r: Reader, family: Family) -> ArchSpec:
    """Phi-3 and Phi-4: a head bias that the reference does not have stops the reading."""
    if r.flag("lm_head_bias"):
        raise r.wrong("lm_head_bias", True, "false: the reference has no such bias")
    r.use("full_attn_mod", "interpolate_factor")
    return dense.build(r, family)


def build_minicpm(r: Reader, family: Family) -> ArchSpec:
    """MiniCPM: three multipliers under its own names; generation 3 has latent attention."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    depth = r.maybe_decimal("scale_depth", minimum=0.0)
    scale = 1.0 if depth is None else depth / math.sqrt(n)
    r.settle("residual_multiplier", scale, "scale_depth / sqrt(num_hidden_layers)")
    base = r.maybe_integer("dim_model_base")
    r.settle("logits_scaling", 1.0 if base is None else hidden / base, "hidden_size / dim_model_base")
    if family.model_type == "minicpm":
        return dense.build(r, family)
    heads = r.integer("num_attention_heads")
    if r.maybe_integer("v_head_dim") is None:
        if hidden % heads:
            raise r.wrong("v_head_dim", None, f"a value, since {heads} heads do not divide hidden_size {hidden}")
        r.settle("v_head_dim", hidden // heads, "hidden_size / num_attention_heads")
    return mla.build(r, family)


def build_opt(r: Reader, family: Family) -> ArchSpec:
    """OPT: learned positions after two reserved rows, and a narrower token table in one size."""
    if not r.flag("do_layer_norm_before", "norms.places", default=True):
        family = dataclasses.replace(family, places="after_sum", final_norm=False)
    if r.flag("_remove_final_layer_norm"):
        family = dataclasses.replace(family, final_norm=False)
    if not r.flag("layer_norm_elementwise_affine", "norms.weight", default=True):
        family = dataclasses.replace(family, norm_weight=False, norm_bias=False)
    spec = dense.build(r, family)
    width = r.maybe_integer("word_embed_proj_dim", "embedding.size", maximum=common.MAX_WIDTH) or spec.hidden
    if width == spec.hidden:
        return spec
    return dataclasses.replace(spec, embedding=dataclasses.replace(spec.embedding, size=width, project=True))


BAICHUAN2_VOCAB = 125_696


def build_baichuan(r: Reader, family: Family) -> ArchSpec:
    """Baichuan: the 13B models use ALiBi and say so nowhere (the serving code goes by the hidden size of 4096 for
    rotary); the head of generation 2, told by its vocabulary, is normalised."""
    if common.hidden_size(r) != 4096:
        family = dataclasses.replace(family, positions="alibi")
        r.notes.append("Baichuan with a hidden size other than 4096 uses ALiBi")
    spec = dense.build(r, family)
    r.known("attention.positions.kind", "head.normalized")
    if spec.embedding.vocab == BAICHUAN2_VOCAB:
        spec = dataclasses.replace(spec, head=dataclasses.replace(spec.head, normalized=True))
    return spec
