"""The families that are known, as data. Facts from the modelling sources of transformers 5.19, written anew."""

from __future__ import annotations

from onboard.facts.families import classic, deepseek_v4, gemma4, llama4, mamba_mix, mla, pure_state, recurrent
from onboard.facts.families.family import Family

BIAS, QKV = "?attention_bias", dict(q_bias=True, k_bias=True, v_bias=True)
ALL_BIAS = dict(q_bias=BIAS, k_bias=BIAS, v_bias=BIAS, o_bias=BIAS)
QKV_BIAS = dict(q_bias=BIAS, k_bias=BIAS, v_bias=BIAS)
USE_BIAS = dict(q_bias="?use_bias", k_bias="?use_bias", v_bias="?use_bias", o_bias="?use_bias", mlp_bias="?use_bias")
TRUE_BIAS = dict(**QKV, o_bias=True, mlp_bias=True)
GEMMA_ACT = (("gelu", "gelu_pytorch_tanh"),)
GRANITE = dict(scale="attention_multiplier", embed_scale="?embedding_multiplier", logit_scale="/logits_scaling",
               residual="residual_multiplier")  # fmt: skip
GEMMA = dict(plus_one=True, embed_scale="sqrt", **ALL_BIAS)


def _f(model_type: str, class_name: str, **traits: object) -> Family:
    return Family(model_type, class_name, **traits)  # type: ignore[arg-type]


FAMILIES: dict[str, Family] = {
    f.model_type: f
    for f in (
        _f("llama", "LlamaForCausalLM", **ALL_BIAS, mlp_bias="?mlp_bias"),
        _f("mistral", "MistralForCausalLM", window="all"),
        _f("ministral", "MinistralForCausalLM", window="all"),
        _f("ministral3", "Ministral3ForCausalLM", window="all"),
        _f("mixtral", "MixtralForCausalLM", window="all", moe="mixtral"),
        _f("qwen2", "Qwen2ForCausalLM", window="switch", **QKV),
        _f("qwen2_vl_text", "Qwen2VLForConditionalGeneration", window="switch", **QKV),
        _f("qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration", window="switch", **QKV),
        _f("qwen2_moe", "Qwen2MoeForCausalLM", window="switch", q_bias="?qkv_bias", k_bias="?qkv_bias",
           v_bias="?qkv_bias", moe="qwen2"),
        _f("mimo", "MiMoForCausalLM", window="switch", **QKV),
        _f("qwen3", "Qwen3ForCausalLM", window="switch", qk_norm="head", **ALL_BIAS),
        _f("qwen3_moe", "Qwen3MoeForCausalLM", window="switch", qk_norm="head", moe="qwen", **ALL_BIAS),
        _f("qwen3_vl_text", "Qwen3VLForConditionalGeneration", qk_norm="head", **ALL_BIAS),
        _f("qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration", qk_norm="head", moe="qwen", **ALL_BIAS),
        _f("qwen3_next", "Qwen3NextForCausalLM", build=recurrent.build_qwen, plus_one=True, qk_norm="head", moe="qwen2",
           **ALL_BIAS),
        _f("qwen3_5_text", "Qwen3_5ForCausalLM", build=recurrent.build_qwen, plus_one=True, qk_norm="head", **ALL_BIAS),
        _f("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", build=recurrent.build_qwen, plus_one=True, qk_norm="head",
           moe="qwen3_5", **ALL_BIAS),
        _f("gemma", "GemmaForCausalLM", act_is=GEMMA_ACT, **GEMMA),
        _f("gemma2", "Gemma2ForCausalLM", places="sandwich", scale="query_pre_attn_scalar", softcaps=True,
           window="pattern", **GEMMA),
        _f("gemma3_text", "Gemma3ForCausalLM", places="sandwich", scale="query_pre_attn_scalar", softcaps=True,
           window="pattern", qk_norm="head", unscaled_sliding=True, **GEMMA),
        _f("gemma4_text", "Gemma4ForCausalLM", build=gemma4.build, embed_scale="sqrt", softcaps=True, window="pattern"),
        _f("llama4_text", "Llama4ForCausalLM", build=llama4.build, interleaved=True),
        _f("phi3", "Phi3ForCausalLM", build=classic.build_phi3, window="all", fused=True),
        _f("phi", "PhiForCausalLM", norm="layernorm", places="parallel", gated=False, head_bias=True,
           qk_norm="head", qk_norm_if="qk_layernorm", **TRUE_BIAS),
        _f("cohere", "CohereForCausalLM", norm="layernorm", norm_bias=False, places="parallel", interleaved=True,
           qk_norm="each_head", qk_norm_if="use_qk_norm", logit_scale="?logit_scale", **ALL_BIAS),
        _f("cohere2", "Cohere2ForCausalLM", norm="layernorm", norm_bias=False, places="parallel", interleaved=True,
           window="pattern", logit_scale="?logit_scale", **ALL_BIAS),
        _f("olmo2", "Olmo2ForCausalLM", places="post", qk_norm="full", **ALL_BIAS),
        _f("olmo3", "Olmo3ForCausalLM", places="post", qk_norm="full", window="pattern", unscaled_sliding=True,
           **ALL_BIAS),
        _f("olmoe", "OlmoeForCausalLM", qk_norm="full", moe="olmoe", **ALL_BIAS),
        _f("granite", "GraniteForCausalLM", mlp_bias="?mlp_bias", **ALL_BIAS, **GRANITE),
        _f("granitemoe", "GraniteMoeForCausalLM", moe="granite", **ALL_BIAS, **GRANITE),
        _f("granitemoeshared", "GraniteMoeSharedForCausalLM", moe="granite_shared", **ALL_BIAS, **GRANITE),
        _f("granitemoehybrid", "GraniteMoeHybridForCausalLM", build=mamba_mix.build_granite, moe="granite", **ALL_BIAS,
           **GRANITE),
        _f("bamba", "BambaForCausalLM", build=mamba_mix.build_bamba, mlp_bias="?mlp_bias", **ALL_BIAS),
        _f("lfm2_moe", "Lfm2MoeForCausalLM", build=recurrent.build_lfm2_moe, qk_norm="head", moe="lfm2"),
        _f("deepseek_v32", "DeepseekV32ForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v3"),
        _f("olmo", "OlmoForCausalLM", norm="layernorm", norm_bias=False, norm_weight=False, **ALL_BIAS),
        _f("opt", "OPTForCausalLM", build=classic.build_opt, norm="layernorm", gated=False, positions="learned",
           learned_offset=2, q_bias="?enable_bias", k_bias="?enable_bias", v_bias="?enable_bias",
           o_bias="?enable_bias", mlp_bias="?enable_bias"),
        _f("minicpm", "MiniCPMForCausalLM", build=classic.build_minicpm, embed_scale="?scale_emb",
           residual="residual_multiplier", logit_scale="/logits_scaling"),
        _f("minicpm3", "MiniCPM3ForCausalLM", build=classic.build_minicpm, embed_scale="?scale_emb",
           residual="residual_multiplier", mlp_bias="?mlp_bias", logit_scale="/logits_scaling"),
        _f("smollm3", "SmolLM3ForCausalLM", window="switch", mlp_bias="?mlp_bias", **ALL_BIAS),
        _f("exaone", "ExaoneForCausalLM"),
        _f("exaone4", "Exaone4ForCausalLM", places="post", qk_norm="head", window="pattern"),
        _f("seed_oss", "SeedOssForCausalLM", mlp_bias="?mlp_bias", o_bias="?attention_out_bias", **QKV_BIAS),
        _f("arcee", "ArceeForCausalLM", gated=False, mlp_bias="?mlp_bias", **ALL_BIAS),
        _f("ernie4_5", "Ernie4_5ForCausalLM", interleaved=True, **USE_BIAS),
        _f("helium", "HeliumForCausalLM", interleaved=True, mlp_bias="?mlp_bias", **QKV_BIAS),
        _f("nemotron", "NemotronForCausalLM", norm="layernorm", plus_one=True, gated=False, mlp_bias="?mlp_bias",
           **ALL_BIAS),
        _f("glm", "GlmForCausalLM", interleaved=True, fused=True, **QKV_BIAS),
        _f("glm4", "Glm4ForCausalLM", interleaved=True, fused=True, places="sandwich", **QKV_BIAS),
        _f("glm4_moe", "Glm4MoeForCausalLM", qk_norm="head", qk_norm_if="use_qk_norm", moe="deepseek_v3", **QKV_BIAS),
        _f("chatglm", "ChatGLMForConditionalGeneration", build=classic.build_chatglm, interleaved=True, fused=True,
           mlp_bias="?add_bias_linear", o_bias="?add_bias_linear"),
        _f("minimax_m2", "MiniMaxM2ForCausalLM", qk_norm="full", moe="minimax_m2"),
        _f("gpt_oss", "GptOssForCausalLM", build=classic.build_gpt_oss, window="pattern", **ALL_BIAS),
        _f("dbrx", "DbrxForCausalLM", build=classic.build_dbrx, norm="layernorm", norm_bias=False, moe="dbrx"),
        _f("baichuan", "BaichuanForCausalLM", build=classic.build_baichuan),
        _f("internlm", "InternLMForCausalLM", q_bias="?bias", k_bias="?bias", v_bias="?bias", o_bias="?bias"),
        _f("internlm2", "InternLM2ForCausalLM", q_bias="?bias", k_bias="?bias", v_bias="?bias", o_bias="?bias"),
        _f("starcoder2", "Starcoder2ForCausalLM", norm="layernorm", gated=False, window="all", **USE_BIAS),
        _f("stablelm", "StableLmForCausalLM", build=classic.build_neox, qk_norm="each_head", qk_norm_if="qk_layernorm",
           qk_bias=False, norm="layernorm", q_bias="?use_qkv_bias",
           k_bias="?use_qkv_bias", v_bias="?use_qkv_bias"),
        _f("gpt_neox", "GPTNeoXForCausalLM", build=classic.build_neox, norm="layernorm", gated=False, mlp_bias=True,
           **ALL_BIAS),
        _f("gptj", "GPTJForCausalLM", build=classic.build_gpt2, norm="layernorm", places="parallel", gated=False,
           interleaved=True, mlp_bias=True, head_bias=True),
        _f("gpt2", "GPT2LMHeadModel", build=classic.build_gpt2, norm="layernorm", gated=False, positions="learned",
           **TRUE_BIAS),
        _f("gpt_bigcode", "GPTBigCodeForCausalLM", build=classic.build_bigcode, norm="layernorm", gated=False,
           positions="learned", **TRUE_BIAS),
        _f("bloom", "BloomForCausalLM", build=classic.build_bloom, norm="layernorm", gated=False, positions="alibi",
           embed_norm=True, **TRUE_BIAS),
        _f("falcon", "FalconForCausalLM", build=classic.build_falcon, norm="layernorm", gated=False, q_bias="?bias",
           k_bias="?bias", v_bias="?bias", o_bias="?bias", mlp_bias="?bias"),
        _f("mpt", "MptForCausalLM", build=classic.build_mpt, norm="layernorm", norm_bias=False, gated=False,
           positions="alibi"),
        _f("deepseek_v2", "DeepseekV2ForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v2",
           mlp_bias="?mlp_bias"),
        _f("deepseek_v3", "DeepseekV3ForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v3"),
        _f("kimi_k2", "DeepseekV3ForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v3"),
        _f("glm4_moe_lite", "Glm4MoeLiteForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v3"),
        _f("glm_moe_dsa", "GlmMoeDsaForCausalLM", build=mla.build, interleaved=True, moe="deepseek_v3"),
        _f("deepseek_v4", "DeepseekV4ForCausalLM", build=deepseek_v4.build),
        _f("nemotron_h", "NemotronHForCausalLM", build=recurrent.build_nemotron, gated=False, positions="none",
           mlp_bias="?mlp_bias"),
        _f("lfm2", "Lfm2ForCausalLM", build=recurrent.build_lfm2, qk_norm="head"),
        _f("xlstm", "xLSTMForCausalLM", build=pure_state.build_xlstm, softcaps=True),
        _f("mamba", "MambaForCausalLM", build=pure_state.build_mamba),
        _f("mamba2", "Mamba2ForCausalLM", build=pure_state.build_mamba),
    )
}  # fmt: skip

# Model types that hold one of the above without a section of its own, or under another name.
SAME_AS = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "deepseek_vl_v2": "deepseek_v2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}

CLASSES = {f.class_name: f.model_type for f in reversed(FAMILIES.values())} | {
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Llama4ForConditionalGeneration": "llama4_text",
}
