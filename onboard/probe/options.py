"""What tiny configs need beyond sizes: optional features to turn over, rotary settings, and families with keys of
their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOT_SETTINGS = (
    "model_type",
    "auto_map",
    "transformers_version",
    "architectures",
    "quantization_config",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "id2label",
    "label2id",
    "problem_type",
    "output_attentions",
    "output_hidden_states",
    "_output_attentions",
    "return_dict",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
)
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SWITCHES = (
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    "use_qkv_bias",
    "use_bias",
    "bias",
    "enable_bias",
    "attention_out_bias",
    "use_qk_norm",
    "qk_layernorm",
    "use_parallel_residual",
    "parallel_attn",
    "new_decoder_architecture",
    "multi_query",
    "alibi",
    "do_layer_norm_before",
    "norm_topk_prob",
    "attention_k_eq_v",
    "use_double_wide_mlp",
    "mup_enabled",
    "lm_head_bias",
    "add_bias_linear",
    "tie_word_embeddings",
)
# Parts that a size of 0 leaves out.
ZEROED = ("hidden_size_per_layer_input", "num_kv_shared_layers")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "layernorm_epsilon")
CAPS = {"clip_qkv": 0.8, "final_logit_softcapping": 5.0, "attn_logit_softcapping": 4.0, "swiglu_limit": 1.1}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0},
}


def head_sizes(values: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Head sizes to try: unlike hidden / heads first, where the class has such a setting."""
    if not isinstance(values.get("head_dim"), int):
        return (None,) if values.get("head_dim", 0) is not None else (None, 24)
    if values.get("qk_rope_head_dim"):
        return (8, 24, None)
    return (32, 24, None)


def optional(base: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and changed settings of each optional feature of a config."""
    values = base.to_dict()
    for name in dict.fromkeys(SWITCHES):
        if isinstance(values.get(name), bool):
            yield name, {name: not values[name]}
    for name, cap in CAPS.items():
        if name in values and values[name] is None:
            yield name, {name: cap}
    for name in ZEROED:
        if values.get(name):
            yield name, {name: 0}
    for name in EPSILONS:
        if isinstance(values.get(name), float):
            yield name, {name: 3e-5}
    block = values.get("rope_parameters")
    flat = isinstance(block, Mapping) and not any(isinstance(v, Mapping) for v in block.values())
    if flat and block.get("partial_rotary_factor") is None and "partial_rotary_factor" not in values:
        plain = {"rope_type": "default", "rope_theta": block.get("rope_theta"), "partial_rotary_factor": 0.5}
        yield "partial_rotary", {"rope_parameters": plain}
    if flat and block.get("rope_type") == "default":
        for kind, more in (*SCALINGS.items(), ("longrope", _longrope(values, block))):
            yield f"rope_{kind}", {"rope_parameters": {**block, **more, "rope_type": kind}}


def _longrope(values: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    size = values.get("qk_rope_head_dim") or values.get("head_dim")
    if not isinstance(size, int):
        size = values.get("hidden_size", 96) // 4
    half = int(size * (block.get("partial_rotary_factor") or 1.0)) // 2
    short, long = ([start + 0.11 * k for k in range(half)] for start in (1.05, 1.4))
    return {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 32}


def rotary(full: Any, values: Mapping[str, Any], head: int | None) -> dict[str, Any]:
    """Rotary settings with a small original context and lists of the right length."""
    block = values.get("rope_parameters")
    if not isinstance(block, Mapping):
        return {}
    size = values.get("qk_rope_head_dim") or head or values.get("head_dim")
    if size is None:
        size = 24
    if all(isinstance(v, Mapping) for v in block.values()):
        sizes = {"full_attention": values.get("global_head_dim") or size}
        return {"rope_parameters": {k: _block(v, sizes.get(k, size)) for k, v in block.items()}}
    found: dict[str, Any] = {"rope_parameters": _block(block, size)}
    if values.get("rotary_dim") and "partial_rotary_factor" in block:
        found["rotary_dim"] = int(size * block["partial_rotary_factor"])
    return found


def _block(block: Mapping[str, Any], size: int) -> dict[str, Any]:
    made = dict(block)
    if made.get("rope_theta", 0) is None:
        made["rope_theta"] = 10000.0
    if made.get("rope_type", "default") not in ("default", "proportional"):
        if "original_max_position_embeddings" in made or made["rope_type"] not in ("linear", "dynamic"):
            made["original_max_position_embeddings"] = 32
        if made.get("factor"):
            made["factor"] = 4.0
    half = int(size * made.get("partial_rotary_factor", 1.0)) // 2
    for name, start in (("short_factor", 1.05), ("long_factor", 1.4)):
        if made.get(name):
            made[name] = [start + 0.11 * k for k in range(half)]
    if made.get("mrope_section"):
        made["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]
    return made


def own(model_type: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of families with keys of their own; a family's own kind of layer where the config lists none."""
    kinds = values.get("layer_types")
    mixed = PATTERNS.get(model_type, {}) if not kinds or len(set(kinds)) == 1 else {}
    return OWN.get(model_type, {}) | mixed


SHORT_CONV = {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_hidden_layers": 4}
PATTERNS: dict[str, dict[str, Any]] = {"lfm2": SHORT_CONV, "lfm2_moe": SHORT_CONV}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 24, "mamba_n_groups": 1, "mamba_d_state": 16}
OWN: dict[str, dict[str, Any]] = {
    "bamba": MAMBA2,
    "granitemoehybrid": MAMBA2,
    "mamba2": {"num_heads": 8, "head_dim": 24, "state_size": 16, "n_groups": 1},
    "deepseek_v4": {"partial_rotary_factor": 0.25},
    "deepseek_v2": {"num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
              "moe_intermediate_size": 48, "first_k_dense_replace": 1},
    "qwen4_exp_text": {"indexer_budget": 8, "indexer_compress_ratio": 2, "indexer_n_heads": 4, "indexer_head_dim": 32,
                       "indexer_kv_heads": 1},
    "nemotron": {"num_key_value_heads": 2},
    "lfm2_moe": {"num_dense_layers": 1},
    "gemma3n_text": {"intermediate_size": 112, "laurel_rank": 8},
    "zamba": {"attention_hidden_size": 192, "attention_head_dim": 48, "mamba_dt_rank": 6},
    "zamba2": {"attention_hidden_size": 192, "attention_head_dim": 48, "mamba_headdim": 24, "n_mamba_heads": 8,
               "kv_channels": 24, "num_query_groups": 4, "adapter_rank": 8, "mamba_d_state": 16, "num_hidden_layers": 5,
               "hybrid_layer_ids": [1, 3],
               "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "linear_attention"]},
    "cohere_compass_text": {"rope_parameters": {
        "full_attention": None,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}},
    "phi4_multimodal": {
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
                          "image_size": 28, "crop_size": 28},
        "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2,
                         "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 32},
    },
    "xlstm": {"embedding_dim": 96, "num_heads": 4},
    "dbrx": {
        "num_key_value_heads": 2,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 3,
                       "ffn_act_fn": {"name": "silu"}},
    },
}  # fmt: skip
