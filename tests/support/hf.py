"""Tiny random models of transformers, saved as ordinary checkpoint folders: the references of the tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel


@dataclass(frozen=True)
class Tiny:
    """One tiny model: its architecture, model type and config values."""

    architecture: str
    model_type: str
    values: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        """The transformers config."""
        return AutoConfig.for_model(self.model_type, **SIZES | self.values)

    def save(self, folder: Path, seed: int = 0) -> PreTrainedModel:
        """Write the checkpoint and return the float32 reference; every weight is random, norms and biases too."""
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
                else:
                    parameter.normal_(0.0, 0.08)
        model.config.architectures = [self.architecture]
        model.save_pretrained(folder)
        return model


SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MODELS = {
    "llama": Tiny("LlamaForCausalLM", "llama", {"head_dim": 16, "tie_word_embeddings": False}),
    "llama-tied-bias": Tiny(
        "LlamaForCausalLM", "llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "llama3-rope": Tiny(
        "LlamaForCausalLM", "llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 32, "num_key_value_heads": 1}
    ),
    "gemma3": Tiny(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            "head_dim": 32,
            "sliding_window": 40,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "final_logit_softcapping": 5.0,
        },
    ),
}
