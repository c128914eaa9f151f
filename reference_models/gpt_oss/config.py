"""GptOss's configuration: what the model needs, read once from the Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_neuron.model.hf_config import (
    head_size,
    refuse_foreign,
    refuse_other_kinds,
    refuse_partial_rotary,
    require,
    rope_parameters,
)
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import RotaryConfig


@dataclass(frozen=True)
class GptOssConfig:
    """Sizes and options of one GptOss; names as in the Hugging Face config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    layer_types: tuple[str, ...]
    sliding_window: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    num_experts: int
    num_experts_per_tok: int
    swiglu_alpha: float
    swiglu_limit: float
    rotary: RotaryConfig

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> GptOssConfig:
        """Read a ``transformers.GptOssConfig``.

        Raises:
            ConfigError, UnsupportedError: naming the field and its value.
        """
        refuse_foreign(hf_config)
        refuse_partial_rotary(hf_config)
        refuse_other_kinds(hf_config, "layer_types", "full_attention", "sliding_attention")
        head_dim = head_size(hf_config)
        max_position_embeddings = require(hf_config, "max_position_embeddings")
        return cls(
            vocab_size=require(hf_config, "vocab_size"),
            hidden_size=require(hf_config, "hidden_size"),
            intermediate_size=require(hf_config, "intermediate_size"),
            num_hidden_layers=require(hf_config, "num_hidden_layers"),
            num_attention_heads=require(hf_config, "num_attention_heads"),
            num_key_value_heads=require(hf_config, "num_key_value_heads"),
            head_dim=head_dim,
            hidden_act=require(hf_config, "hidden_act"),
            rms_norm_eps=require(hf_config, "rms_norm_eps"),
            layer_types=tuple(require(hf_config, "layer_types")),
            sliding_window=require(hf_config, "sliding_window"),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=require(hf_config, "tie_word_embeddings"),
            attention_bias=require(hf_config, "attention_bias"),
            num_experts=require(hf_config, "num_experts"),
            num_experts_per_tok=require(hf_config, "num_experts_per_tok"),
            swiglu_alpha=require(hf_config, "swiglu_alpha"),
            swiglu_limit=require(hf_config, "swiglu_limit"),
            rotary=RotaryConfig.from_parameters(rope_parameters(hf_config), head_dim, max_position_embeddings),
        )
