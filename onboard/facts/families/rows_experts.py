"""Rows of the families with experts, latent attention or a recurrent state that came after the first ones.

Facts from the modelling sources of transformers 5.19, written anew.
"""

from __future__ import annotations

from onboard.facts.families import experts, hybrids, latent, mla, pure_state, unusual
from onboard.facts.families.family import Family
from onboard.facts.families.traits import ALL_BIAS, GRANITE, QKV_BIAS, USE_BIAS
from onboard.facts.families.traits import row as _f

MIXTURES: tuple[Family, ...] = (
    _f("afmoe", "AfmoeForCausalLM", build=experts.build_afmoe, places="sandwich", qk_norm="head",
       embed_scale="sqrt?mup_enabled", moe="sigmoid_shared", **ALL_BIAS),
    _f("aria_text", "AriaTextForCausalLM", build=experts.build_aria, mlp_bias="?mlp_bias", moe="aria", **ALL_BIAS),
    _f("cohere2_moe", "Cohere2MoeForCausalLM", build=experts.build_cohere2_moe, norm="layernorm", norm_bias=False,
       places="parallel", interleaved=True, logit_scale="?logit_scale", moe="aria", **ALL_BIAS),
    _f("dots1", "Dots1ForCausalLM", build=experts.build_dots1, qk_norm="head", moe="deepseek_v3", **ALL_BIAS),
    _f("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", build=experts.build_ernie, interleaved=True,
       head_bias="?use_bias", moe="ernie", **USE_BIAS),
    _f("exaone_moe", "ExaoneMoeForCausalLM", build=experts.build_exaone_moe, window="pattern", qk_norm="head",
       moe="deepseek_v3"),
    _f("flex_olmo", "FlexOlmoForCausalLM", places="post", qk_norm="full", moe="olmoe", **ALL_BIAS),
    _f("granitemoe_swa", "GraniteMoeSWAForCausalLM", build=experts.build_granitemoe_swa, moe="granite_shared",
       **ALL_BIAS, **GRANITE),
    _f("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", build=experts.build_hunyuan_moe, qk_norm="head",
       qk_place="after_rope", moe="hunyuan", **ALL_BIAS),
    _f("hy_v3", "HYV3ForCausalLM", build=experts.build_first_dense, qk_norm="head", mlp_bias="?mlp_bias",
       moe="sigmoid_shared", **ALL_BIAS),
    _f("jetmoe", "JetMoeForCausalLM", build=experts.build_jetmoe, moe="mixtral"),
    _f("laguna", "LagunaForCausalLM", build=experts.build_laguna, qk_norm="head", moe="laguna", **ALL_BIAS),
    _f("mellum", "MellumForCausalLM", qk_norm="head", moe="qwen", **ALL_BIAS),
    _f("mimo_v2_flash", "MiMoV2FlashForCausalLM", build=experts.build_mimo_v2, moe="mimo_v2", **QKV_BIAS),
    _f("minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", build=experts.build_minimax_m3, plus_one=True, qk_norm="head",
       fused=True, moe="minimax_m3"),
    _f("phimoe", "PhimoeForCausalLM", build=experts.build_phimoe, norm="layernorm", window="all",
       head_bias="?lm_head_bias", moe="mixtral", **ALL_BIAS),
    _f("solar_open", "SolarOpenForCausalLM", moe="deepseek_v3", **QKV_BIAS),
    _f("axk1", "AXK1ForCausalLM", build=latent.build_axk1, interleaved=True, moe="deepseek_v3"),
    _f("axk2", "AXK2ForCausalLM", build=latent.build_axk2, interleaved=True, moe="deepseek_v3"),
    _f("hy_v4", "HYV4ForCausalLM", build=latent.build_hy_v4, moe="deepseek_v3"),
    _f("longcat_flash", "LongcatFlashForCausalLM", build=latent.build_longcat, interleaved=True, moe="longcat"),
    _f("youtu", "YoutuForCausalLM", build=mla.build, interleaved=True),
)  # fmt: skip

RECURRENT: tuple[Family, ...] = (
    _f("falcon_h1", "FalconH1ForCausalLM", build=hybrids.build_falcon_h1, embed_scale="?embedding_multiplier",
       logit_scale="?lm_head_multiplier", mlp_bias="?mlp_bias", **ALL_BIAS),
    _f("falcon_mamba", "FalconMambaForCausalLM", build=pure_state.build_mamba),
    _f("inkling_text", "InklingForCausalLM", build=unusual.build_inkling, embed_norm=True, qk_norm="head",
       logit_scale="/logits_mup_width_multiplier", moe="sigmoid_shared"),
    _f("jamba", "JambaForCausalLM", build=hybrids.build_jamba, positions="none", moe="jamba"),
    _f("kimi_linear", "KimiLinearForCausalLM", build=hybrids.build_kimi_linear, moe="deepseek_v3"),
    _f("minimax", "MiniMaxForCausalLM", build=hybrids.build_minimax, moe="mixtral"),
    _f("olmo_hybrid", "OlmoHybridForCausalLM", build=hybrids.build_olmo_hybrid, qk_norm="full", **ALL_BIAS),
    _f("qwen4_exp_text", "Qwen4ExpForCausalLM", build=unusual.build_qwen4, plus_one=True, qk_norm="head", moe="qwen2",
       **ALL_BIAS),
    _f("recurrent_gemma", "RecurrentGemmaForCausalLM", build=hybrids.build_recurrent_gemma, plus_one=True,
       mlp_bias=True, o_bias=True, embed_scale="sqrt", softcaps=True, **QKV_BIAS),
    _f("rwkv", "RwkvForCausalLM", build=unusual.build_rwkv, norm="layernorm"),
    _f("zamba", "ZambaForCausalLM", build=hybrids.build_zamba, positions="none"),
    _f("zamba2", "Zamba2ForCausalLM", build=hybrids.build_zamba2, fused=True, mlp_bias="?add_bias_linear"),
    _f("zaya", "ZayaForCausalLM", build=unusual.build_zaya, head_bias="?lm_head_bias", moe="qwen", **ALL_BIAS),
)  # fmt: skip

EXPERTS: tuple[Family, ...] = MIXTURES + RECURRENT

# Multimodal types that hold one of these.
EXPERTS_SAME_AS = {
    "aria": "aria_text",
    "inkling": "inkling_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "qwen4_exp": "qwen4_exp_text",
}
