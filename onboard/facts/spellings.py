"""Spellings of one and the same setting in the configs of different families, the modern one first.

A dot goes into a nested object (``attn_config.kv_n_heads``).
"""

from __future__ import annotations

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embedding_dim", "model_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "multi_query_group_num",
        "attn_config.kv_n_heads",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate_size": (
        "intermediate_size",
        "ffn_hidden_size",
        "ffn_dim",
        "n_inner",
        "block_ff_dim",
        "ffn_config.ffn_hidden_size",
    ),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
    ),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation", "ffn_config.ffn_act_fn"),
    "norm_eps": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_eps",
        "norm_epsilon",
    ),
    "rope_theta": ("rope_theta", "rotary_emb_base", "attn_config.rope_theta"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    "num_experts": (
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "ffn_config.moe_num_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_topk",
        "ffn_config.moe_top_k",
    ),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts"),
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding", "tie_embeddings"),
    "clip_qkv": ("clip_qkv", "attn_config.clip_qkv"),
    "sliding_window": ("sliding_window", "sliding_window_size", "attention_window_size"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "layer_types": ("layer_types", "layers_block_type"),
    "final_logit_softcapping": ("final_logit_softcapping", "output_logit_soft_cap", "final_logit_softcap"),
    "attn_logit_softcapping": ("attn_logit_softcapping", "attn_logit_softcap"),
    "num_nextn_predict_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
    "dtype": ("dtype", "torch_dtype"),
}

MAMBA_MIX: dict[str, tuple[str, ...]] = {
    "mamba_num_heads": ("mamba_n_heads",),
    "mamba_head_dim": ("mamba_d_head",),
    "ssm_state_size": ("mamba_d_state",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "use_conv_bias": ("mamba_conv_bias",),
    "use_bias": ("mamba_proj_bias",),
}

SPARSE_CONFIG = "sparse_attention_config."

FAMILY_SPELLINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "afmoe": {"routed_scaling_factor": ("route_scale",)},
    "aria_text": {"num_shared_experts": ("moe_num_shared_experts",)},
    "ernie4_5_moe": {
        "num_experts": ("moe_num_experts", "num_experts"),
        "num_experts_per_tok": ("moe_k", "num_experts_per_tok"),
        "num_shared_experts": ("moe_num_shared_experts",),
    },
    "falcon_h1": MAMBA_MIX,
    "hy_v3": {"routed_scaling_factor": ("router_scaling_factor",)},
    "inkling_text": {"routed_scaling_factor": ("route_scale",)},
    "jamba": {"use_conv_bias": ("mamba_conv_bias",), "use_bias": ("mamba_proj_bias",)},
    "kimi_linear": {
        "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
        "n_group": ("num_expert_group", "n_group"),
        "norm_topk_prob": ("moe_renormalize", "norm_topk_prob"),
        "max_position_embeddings": ("model_max_length", "max_position_embeddings"),
    },
    "laguna": {"routed_scaling_factor": ("moe_routed_scaling_factor",)},
    "longcat_flash": {
        "num_hidden_layers": ("num_layers", "num_hidden_layers"),
        "intermediate_size": ("ffn_hidden_size", "intermediate_size"),
        "moe_intermediate_size": ("expert_ffn_hidden_size", "moe_intermediate_size"),
    },
    "minimax_m3_vl_text": {
        "moe_intermediate_size": ("intermediate_size",),
        "intermediate_size": ("dense_intermediate_size",),
        "index_n_heads": ("index_n_heads", SPARSE_CONFIG + "sparse_num_index_heads"),
        "index_head_dim": ("index_head_dim", SPARSE_CONFIG + "sparse_index_dim"),
    },
    "recurrent_gemma": {"final_logit_softcapping": ("logits_soft_cap",), "conv_kernel": ("conv1d_width",)},
    "rwkv": {"max_position_embeddings": ("context_length",)},
    "zamba": {
        "head_dim": ("attention_head_dim",),
        "use_conv_bias": ("mamba_conv_bias",),
        "use_bias": ("mamba_proj_bias",),
    },
    "zamba2": {"head_dim": ("attention_head_dim",)},
    "nemotron_h": {
        "norm_eps": ("layer_norm_epsilon", "norm_eps", "rms_norm_eps"),
        "hidden_act": ("mlp_hidden_act",),
        "layer_types": ("layers_block_type", "layer_types"),
    },
    "xlstm": {"num_attention_heads": ("num_heads",), "norm_eps": ("norm_eps",)},
    "mamba": {"num_attention_heads": ("num_attention_heads",)},
    "mamba2": {"num_attention_heads": ("num_attention_heads",)},
    "llama4_text": {"moe_intermediate_size": ("intermediate_size",), "intermediate_size": ("intermediate_size_mlp",)},
    "gemma4_text": {"num_experts_per_tok": ("top_k_experts",)},
    "lfm2": {"intermediate_size": ("block_ff_dim", "intermediate_size"), "norm_eps": ("norm_eps", "block_norm_eps")},
    "deepseek_v4": {"intermediate_size": ("moe_intermediate_size",)},
    "mpt": {"hidden_act": ("hidden_act",)},
    "granitemoehybrid": {**MAMBA_MIX, "layer_types": ("layer_types", "layers_block_type")},
    "bamba": MAMBA_MIX,
    "lfm2_moe": {"norm_eps": ("norm_eps", "block_norm_eps")},
    "opt": {"norm_eps": ("layer_norm_eps",)},
    "codegen": {"intermediate_size": ("n_inner",)},
    "cpmant": {"head_dim": ("dim_head",), "intermediate_size": ("dim_ff",), "norm_eps": ("eps",)},
    "ctrl": {"intermediate_size": ("dff",)},
    "gpt_neo": {"sliding_window": ("window_size",)},
    "modernbert-decoder": {
        "rope_theta": ("global_rope_theta",),
        "rope_local_base_freq": ("local_rope_theta",),
        "sliding_window_pattern": ("global_attn_every_n_layers",),
    },
    "openai-gpt": {"hidden_act": ("afn",)},
    "xglm": {"num_attention_heads": ("attention_heads", "num_attention_heads")},
    "gptj": {"intermediate_size": ("n_inner",)},
    "falcon": {"num_key_value_heads": ("num_kv_heads", "n_head_kv", "num_key_value_heads")},
}

# Keys that a family's reference does not read, or only in layers that this checkpoint lacks.
FAMILY_IGNORED: dict[str, frozenset[str]] = {
    "llama": frozenset({"is_llama_config"}),
    "minimax_m2": frozenset({"attn_type_list", "layernorm_full_attention_beta", "layernorm_linear_attention_beta",
                             "layernorm_mlp_beta", "mlp_intermediate_size", "qk_norm_type", "shared_intermediate_size",
                             "shared_moe_mode", "use_qk_norm", "use_routing_bias"}),
    "qwen3_moe": frozenset({"intermediate_size"}),
    "qwen3_vl_moe_text": frozenset({"intermediate_size"}),
    "qwen3_next": frozenset({"intermediate_size"}),
    "nemotron_h": frozenset({"intermediate_size"}),
    "llama4_text": frozenset({"intermediate_size_mlp"}),
    "mimo": frozenset({"attention_bias"}),
    "phi3": frozenset({"original_max_position_embeddings"}),
    "deepseek_v4": frozenset({"compress_rope_theta"}),
    "glm_moe_dsa": frozenset({"first_k_dense_replace", "layer_types"}),
    "deepseek_v32": frozenset({"first_k_dense_replace", "layer_types"}),
    "qwen2_moe": frozenset({"intermediate_size"}),
    "solar_open": frozenset({"intermediate_size"}),
    "deepseek_v2": frozenset({"intermediate_size"}),
    "gpt2": frozenset({"output_past"}),
    "gemma3_text": frozenset({"attn_logit_softcapping"}),
    "modernbert-decoder": frozenset({"classifier_activation", "cls_token_id", "initializer_cutoff_factor"}),
    "moshi": frozenset({"audio_encoder_config", "audio_vocab_size", "depth_decoder_config", "num_codebooks"}),
    "phi4_multimodal": frozenset({"original_max_position_embeddings"}),
    "cohere_compass_text": frozenset({"pooling"}),
}  # fmt: skip

TOWER_KEYS = frozenset({
    "vision_config", "audio_config", "video_token_id", "vision_end_token_id", "vision_start_token_id",
    "vision_token_id", "audio_token_id",
})  # fmt: skip

# Keys that say nothing about the architecture: tokens, training, generation, files, kernels.
_WITHOUT_MEANING = """
_attn_implementation _attn_implementation_autoset _commit_hash _from_model_config _name_or_path add_cross_attention
add_embedding_dropout add_forward_backend_padding architectures attention_dropout attention_probs_dropout_prob
attention_softmax_in_fp32 attn_implementation attn_pdrop auto_map autocast_kernel_dtype aux_loss_alpha aux_loss_coef
bad_words_ids begin_suppress_tokens bias_dropout_fusion block_mlp_init_scale block_out_init_scale
block_use_xavier_init boi_token_id boi_token_index bos_token_id cache_implementation chunk_size
chunk_size_feed_forward chunkwise_kernel classifier_dropout conv_use_xavier_init cross_attention_hidden_size
decoder_start_token_id diversity_penalty do_sample dropout early_stopping emb_pdrop embd_pdrop embed_dropout
embedding_initializer_range encoder_no_repeat_ngram_size eod_token_id eoi_token_id eoi_token_index eos_token_id
ep_size expert_dtype exponential_decay_length_penalty feed_forward_proj finetuning_task for_llm_compressor
force_bos_token_insert forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout
hidden_dropout_prob id2label igate_bias_init_range ignore_index image_token_id image_token_index
index_share_for_mtp_iteration inference_state_dtype init_std initializer_range is_decoder is_encoder_decoder
keys_to_ignore_at_inference label2id layerdrop length_penalty mamba_ssm_cache_dtype mamba_ssm_dtype
max_inference_chunksize max_length min_length mode model_max_length model_type moe_jitter_eps moe_loss_weight
moe_router_dtype moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type mtp_transformer_layers
mtp_use_dedicated_embeddings n_special no_repeat_ngram_size norm_reduction_force_float32 num_beam_groups num_beams
num_hash_layers_loss num_labels num_logits_to_keep num_return_sequences output_attentions output_hidden_states
output_router_logits output_scores pad_token_id predict_special_tokens prefix pretraining_tp problem_type pruned_heads
quantization quantization_config remove_invalid_values reorder_and_upcast_attn repetition_penalty
rescale_prenorm_residual resid_pdrop residual_dropout return_dict return_dict_in_generate return_last_states
rope_config_validation router_aux_loss_coef router_jitter_noise scale_attention_softmax_in_fp32 sep_token_id seq_aux
sequence_kernel step_kernel summary_activation summary_first_dropout summary_proj_to_labels summary_type
summary_use_proj suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder time_step_floor
time_step_limit time_step_max time_step_min tokenizer_class top_k top_p torchscript transformers.js_config
transformers_version typical_p unk_token_id use_associative_scan use_bfloat16 use_cache use_kernels use_mamba_kernels
use_mtp
"""
IGNORED = frozenset(_WITHOUT_MEANING.split())
