"""Further dense decoders, as rows. Facts from the modelling sources of transformers 5.19, written anew."""

from __future__ import annotations

from onboard.facts.families import classic, dense_beyond, dense_own, gemma4
from onboard.facts.families.family import Family
from onboard.facts.families.traits import ALL_BIAS, GEMMA, GRANITE, MULTIPLIERS, TRUE_BIAS, row

DENSE: tuple[Family, ...] = (
    row("apertus", "ApertusForCausalLM", gated=False, qk_norm="head", **ALL_BIAS),
    row("biogpt", "BioGptForCausalLM", norm="layernorm", eps=1e-5, gated=False, positions="learned", learned_offset=2,
        embed_scale="sqrt?scale_embedding", **TRUE_BIAS),
    row("bitnet", "BitNetForCausalLM", build=dense_own.build_bitnet, **ALL_BIAS),
    row("codegen", "CodeGenForCausalLM", build=classic.build_gpt2, norm="layernorm", places="parallel", gated=False,
        interleaved=True, mlp_bias=True, head_bias=True),
    row("cohere_compass_text", "CohereCompassForCausalLM", build=dense_own.build_compass, norm="layernorm",
        norm_bias=False, places="parallel", logit_scale="?logit_scale", **ALL_BIAS),
    row("cpmant", "CpmAntForCausalLM", build=dense_beyond.build_cpmant, positions="none", untied=True),
    row("ctrl", "CTRLLMHeadModel", build=dense_own.build_ctrl, norm="layernorm", eps=1e-6, gated=False,
        positions="sinusoidal", embed_scale="sqrt", head_bias=True, **TRUE_BIAS),
    row("cwm", "CwmForCausalLM", window="pattern", pattern_first=True, mlp_bias="?mlp_bias"),
    row("diffllama", "DiffLlamaForCausalLM", build=dense_beyond.build_diffllama, **ALL_BIAS),
    row("doge", "DogeForCausalLM", build=dense_beyond.build_doge, qk_norm="head", mlp_bias="?mlp_bias", **ALL_BIAS),
    row("emu3_text_model", "Emu3ForCausalLM", mlp_bias="?mlp_bias", **ALL_BIAS),
    row("gemma3n_text", "Gemma3nForCausalLM", build=dense_beyond.build_gemma3n, embed_scale="sqrt", softcaps=True,
        window="pattern"),
    row("gemma4_unified_text", "Gemma4UnifiedForCausalLM", build=gemma4.build, embed_scale="sqrt", softcaps=True,
        window="pattern"),
    row("gpt_neo", "GPTNeoForCausalLM", build=dense_own.build_gpt_neo, norm="layernorm", gated=False, scale="one",
        positions="learned", window="pattern", o_bias=True, mlp_bias=True),
    row("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", build=dense_own.build_japanese, norm="layernorm",
        gated=False),
    row("granite_swa", "GraniteSWAForCausalLM", build=dense_own.build_granite_swa, window="pattern",
        pattern_first=True, mlp_bias="?mlp_bias", **ALL_BIAS, **GRANITE),
    row("hrm_text", "HrmTextForCausalLM", build=dense_beyond.build_hrm, norm_weight=False, final_norm=False,
        embed_scale="?embedding_scale", mlp_bias="?mlp_bias", **ALL_BIAS),
    row("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", qk_norm="head", qk_place="after_rope", **ALL_BIAS),
    row("hyperclovax", "HyperCLOVAXForCausalLM", build=dense_own.build_hyperclovax, logit_scale="?logits_scaling",
        mlp_bias="?mlp_bias", **ALL_BIAS, **MULTIPLIERS),
    row("jais2", "Jais2ForCausalLM", norm="layernorm", gated=False, mlp_bias="?mlp_bias", **ALL_BIAS),
    row("mllama_text_model", "MllamaForCausalLM", build=dense_beyond.build_mllama, untied=True),
    row("modernbert-decoder", "ModernBertDecoderForCausalLM", build=dense_own.build_modernbert, norm="layernorm",
        fused=True, embed_norm=True, window="pattern", pattern_first=True, mlp_bias="?mlp_bias",
        head_bias="?decoder_bias", **ALL_BIAS),
    row("moshi", "MoshiForCausalLM", build=dense_own.build_moshi, fused=True, untied=True),
    row("nanochat", "NanoChatForCausalLM", build=dense_own.build_nanochat, norm_weight=False, gated=False,
        embed_norm=True, qk_norm="head", qk_place="after_rope", softcaps="head", **ALL_BIAS),
    row("openai-gpt", "OpenAIGPTLMHeadModel", build=dense_own.build_openai, norm="layernorm", places="after_sum",
        gated=False, positions="learned", final_norm=False, act_is=(("gelu", "gelu_new"),), **TRUE_BIAS),
    row("persimmon", "PersimmonForCausalLM", norm="layernorm", gated=False, qk_norm="head", qk_norm_if="qk_layernorm",
        **TRUE_BIAS),
    row("phi4_multimodal", "Phi4MultimodalForCausalLM", build=classic.build_phi3, window="all", fused=True),
    row("vaultgemma", "VaultGemmaForCausalLM", scale="query_pre_attn_scalar", softcaps=True, window="pattern",
        **GEMMA),
    row("xglm", "XGLMForCausalLM", build=dense_own.build_xglm, norm="layernorm", eps=1e-5, gated=False,
        positions="sinusoidal", embed_scale="sqrt?scale_embedding", **TRUE_BIAS),
)  # fmt: skip

# Whole models whose decoder is one of the above.
DENSE_SAME_AS = {
    "cohere_compass": "cohere_compass_text",
    "emu3": "emu3_text_model",
    "gemma3n": "gemma3n_text",
    "gemma4_unified": "gemma4_unified_text",
    "mllama": "mllama_text_model",
}
