"""What vLLM's registry knows as ``Phi3ForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.phi3.model import Phi3
from vllm_neuron.model.neuron_config import NeuronConfig


class Phi3ForCausalLM:
    """Picks the variant of Phi3 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Phi3:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Phi3.from_configs(hf_config, neuron_config)
