"""What vLLM's registry knows as ``Glm4ForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.glm4.model import Glm4
from vllm_neuron.model.neuron_config import NeuronConfig


class Glm4ForCausalLM:
    """Picks the variant of Glm4 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Glm4:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Glm4.from_configs(hf_config, neuron_config)
