"""What vLLM's registry knows as ``GptOssForCausalLM``."""

from __future__ import annotations

from typing import Any

from reference_models.gpt_oss.model import GptOss
from vllm_neuron.model.neuron_config import NeuronConfig


class GptOssForCausalLM:
    """Picks the variant of GptOss for a config; there is one, in the checkpoint's own precision."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> GptOss:
        """Build the model on the meta device for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        return GptOss.from_configs(hf_config, neuron_config)
