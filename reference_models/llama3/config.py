"""Llama's configuration: what the model needs, read once from the Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_neuron.model.hf_config import head_size, refuse_foreign, refuse_partial_rotary, require, rope_parameters
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import RotaryConfig


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and options of one Llama; names as in the Hugging Face config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rotary: RotaryConfig

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> LlamaConfig:
        """Read a ``transformers.LlamaConfig``.

        Raises:
            ConfigError, UnsupportedError: naming the field and its value.
        """
        refuse_foreign(hf_config)
        refuse_partial_rotary(hf_config)
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
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=require(hf_config, "tie_word_embeddings"),
            attention_bias=require(hf_config, "attention_bias"),
            mlp_bias=require(hf_config, "mlp_bias"),
            rotary=RotaryConfig.from_parameters(rope_parameters(hf_config), head_dim, max_position_embeddings),
        )
