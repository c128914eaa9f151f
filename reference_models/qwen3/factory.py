"""What vLLM's registry knows as ``Qwen3ForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.qwen3.model import Qwen3
from vllm_neuron.model.neuron_config import NeuronConfig


class Qwen3ForCausalLM:
    """Picks the variant of Qwen3 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Qwen3:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Qwen3.from_configs(hf_config, neuron_config)
