"""What vLLM's registry knows as ``LlamaForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.llama3.model import Llama
from vllm_neuron.model.neuron_config import NeuronConfig


class LlamaForCausalLM:
    """Picks the variant of Llama for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Llama:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Llama.from_configs(hf_config, neuron_config)
