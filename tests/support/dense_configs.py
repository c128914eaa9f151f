"""A tiny config of every dense decoder of transformers, from its own config class."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = ["sliding_attention", "full_attention"] * 2
GEMMA4 = {"num_kv_shared_layers": 2, "layer_types": MIXED, "global_head_dim": 32}
PER_LAYER = {"vocab_size_per_layer_input": 331, "hidden_size_per_layer_input": 8}
COMPASS_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
# What a family spells in its own way, or needs beside the sizes.
OWN: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 8, "n_ctx": 64},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": COMPASS_ROPE, "sliding_attention": None},
        "layer_types": MIXED,
    },
    "cpmant": {
        "dim_head": 16,
        "dim_ff": 96,
        "prompt_types": 3,
        "prompt_length": 4,
        "segment_types": 5,
        "position_bias_num_buckets": 16,
    },
    "ctrl": {"dff": 96},
    "gemma3n_text": {
        **PER_LAYER,
        "num_kv_shared_layers": 2,
        "layer_types": MIXED,
        "laurel_rank": 4,
        "intermediate_size": [96, 96, 160, 160],
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {**PER_LAYER, **GEMMA4},
    "gemma4_unified_text": GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "granite_swa": {"layer_rope_theta": [1e4, 0, 2e4, 1e4]},
    "hrm_text": {"num_hidden_layers": 2},
    "mllama": {"cross_attention_layers": [1, 7]},
    "modernbert-decoder": {"local_attention": 16},
    "moshi": {"ffn_dim": 192},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 4},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "xglm": {"ffn_dim": 96, "attention_heads": 4, "d_model": 64, "num_layers": 4},
}
NESTED = ("emu3", "mllama")


def tiny(model_type: str, **changes: Any) -> PreTrainedConfig:
    """The tiny config of a family, with some values changed; families whose decoder sits in a section get it there."""
    cls = CONFIG_MAPPING[model_type]
    own = cls.sub_configs["text_config"] if model_type in NESTED else cls
    known = {field.name for field in dataclasses.fields(own)} | set(own.attribute_map)
    values = {k: v for k, v in SIZES.items() if k in known} | OWN.get(model_type, {}) | changes
    return cls(text_config=values) if model_type in NESTED else cls(**values)


def flags(model_type: str) -> list[str]:
    """The boolean settings of a family's decoder."""
    values = tiny(model_type).get_text_config().to_dict()
    return sorted(name for name, value in values.items() if isinstance(value, bool))


def written(config: PreTrainedConfig, *, full: bool) -> dict[str, Any]:
    """What transformers would write to ``config.json``; ``full``: with the values that are at their default too."""
    return json.loads(json.dumps(config.to_dict() if full else config.to_diff_dict()))
