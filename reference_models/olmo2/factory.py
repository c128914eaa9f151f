"""What vLLM's registry knows as ``Olmo2ForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.olmo2.model import Olmo2
from vllm_neuron.model.neuron_config import NeuronConfig


class Olmo2ForCausalLM:
    """Picks the variant of Olmo2 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Olmo2:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Olmo2.from_configs(hf_config, neuron_config)
