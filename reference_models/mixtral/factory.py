"""What vLLM's registry knows as ``MixtralForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.mixtral.model import Mixtral
from vllm_neuron.model.neuron_config import NeuronConfig


class MixtralForCausalLM:
    """Picks the variant of Mixtral for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Mixtral:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Mixtral.from_configs(hf_config, neuron_config)
