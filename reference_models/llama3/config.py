"""Llama's configuration: what the model needs, read once from the Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_neuron.errors import UnsupportedError
from vllm_neuron.model.hf_config import head_size, refuse_unless, require, rope_parameters
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import RotaryConfig

# What models of other families put on top of this architecture; none of it is computed here.
NOT_LLAMA = (
    "attention_multiplier",
    "attn_logit_softcapping",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "qk_norm",
    "residual_multiplier",
    "use_qk_norm",
)


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
    attention_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    rotary: RotaryConfig

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> LlamaConfig:
        """Read a ``transformers.LlamaConfig``.

        Raises:
            ConfigError, UnsupportedError: naming the field and its value.
        """
        refuse_unless(hf_config, "pretraining_tp", 1, None)
        for name in NOT_LLAMA:
            refuse_unless(hf_config, name, None, 1.0, False)
        # transformers' Llama turns the whole head, whatever these say.
        refuse_unless(hf_config, "partial_rotary_factor", None, 1.0)
        if rope_parameters(hf_config).get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedError(
                "rope_parameters.partial_rotary_factor",
                rope_parameters(hf_config)["partial_rotary_factor"],
                "1.0 or none",
            )
        head_dim = head_size(hf_config)
        positions = require(hf_config, "max_position_embeddings")
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
            attention_bias=require(hf_config, "attention_bias"),
            mlp_bias=require(hf_config, "mlp_bias"),
            tie_word_embeddings=require(hf_config, "tie_word_embeddings"),
            max_position_embeddings=positions,
            rotary=RotaryConfig.from_parameters(rope_parameters(hf_config), head_dim, positions),
        )
