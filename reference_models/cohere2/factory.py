"""What vLLM's registry knows as ``Cohere2ForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.cohere2.model import Cohere2
from vllm_neuron.model.neuron_config import NeuronConfig


class Cohere2ForCausalLM:
    """Picks the variant of Cohere2 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Cohere2:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Cohere2.from_configs(hf_config, neuron_config)
