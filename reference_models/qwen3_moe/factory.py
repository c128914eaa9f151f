"""What vLLM's registry knows as ``Qwen3MoeForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.qwen3_moe.model import Qwen3Moe
from vllm_neuron.model.neuron_config import NeuronConfig


class Qwen3MoeForCausalLM:
    """Picks the variant of Qwen3Moe for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Qwen3Moe:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Qwen3Moe.from_configs(hf_config, neuron_config)
