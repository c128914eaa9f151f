"""What vLLM's registry knows as ``GraniteForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.granite.model import Granite
from vllm_neuron.model.neuron_config import NeuronConfig


class GraniteForCausalLM:
    """Picks the variant of Granite for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Granite:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Granite.from_configs(hf_config, neuron_config)
