"""Gemma3's configuration: what the model needs, read once from the Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_neuron.model.hf_config import (
    head_size,
    refuse_foreign,
    refuse_other_kinds,
    refuse_unless,
    require,
    rope_parameters,
)
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import RotaryConfig

# Settings that the model's code does not read, with the values that it was made for.
PINNED: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (None,),
    "use_bidirectional_attention": (False,),
}


@dataclass(frozen=True)
class Gemma3Config:
    """Sizes and options of one Gemma3; names as in the Hugging Face config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_activation: str
    rms_norm_eps: float
    layer_types: tuple[str, ...]
    sliding_window: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    final_logit_softcapping: float | None
    query_pre_attn_scalar: int
    rotary: dict[str, RotaryConfig]

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Gemma3Config:
        """Read a ``transformers.Gemma3TextConfig``.

        Raises:
            ConfigError, UnsupportedError: naming the field and its value.
        """
        refuse_foreign(hf_config, "final_logit_softcapping")
        for name, allowed in PINNED.items():
            refuse_unless(hf_config, name, *allowed)
        refuse_other_kinds(hf_config, "layer_types", "full_attention", "sliding_attention")
        head_dim = head_size(hf_config)
        layer_types = tuple(require(hf_config, "layer_types"))
        max_position_embeddings = require(hf_config, "max_position_embeddings")
        return cls(
            vocab_size=require(hf_config, "vocab_size"),
            hidden_size=require(hf_config, "hidden_size"),
            intermediate_size=require(hf_config, "intermediate_size"),
            num_hidden_layers=require(hf_config, "num_hidden_layers"),
            num_attention_heads=require(hf_config, "num_attention_heads"),
            num_key_value_heads=require(hf_config, "num_key_value_heads"),
            head_dim=head_dim,
            hidden_activation=require(hf_config, "hidden_activation"),
            rms_norm_eps=require(hf_config, "rms_norm_eps"),
            layer_types=layer_types,
            sliding_window=require(hf_config, "sliding_window"),
            max_position_embeddings=max_position_embeddings,
            tie_word_embeddings=require(hf_config, "tie_word_embeddings"),
            attention_bias=require(hf_config, "attention_bias"),
            final_logit_softcapping=hf_config.final_logit_softcapping,
            query_pre_attn_scalar=require(hf_config, "query_pre_attn_scalar"),
            rotary={
                kind: RotaryConfig.from_parameters(rope_parameters(hf_config, kind), head_dim, max_position_embeddings)
                for kind in sorted(set(require(hf_config, "layer_types")))
            },
        )
