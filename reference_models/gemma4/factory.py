"""What vLLM's registry knows as ``Gemma4ForConditionalGeneration``."""

from __future__ import annotations

from typing import Any

from reference_models.gemma4.model import Gemma4
from vllm_neuron.model.neuron_config import NeuronConfig


class Gemma4ForCausalLM:
    """Picks the variant of Gemma4 for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Gemma4:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return Gemma4.from_configs(hf_config, neuron_config)
