"""A model package whose logits are half of Llama's: another package for an architecture that is served already."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from reference_models.llama3.model import Llama
from vllm_neuron.model.neuron_config import NeuronConfig


class HalfLlama(Llama):
    """Factory and model in one."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> HalfLlama:
        """See :class:`vllm_neuron.model.interface.DecoderModel`."""
        return super().from_configs(hf_config, neuron_config)

    def compute_logits(self, hidden_RH: Tensor) -> Tensor:
        """Half of them."""
        return 0.5 * super().compute_logits(hidden_RH)
