"""What vLLM's registry holds for an architecture that only we serve. It is inspected, never run."""

from __future__ import annotations

from torch import Tensor, nn


class TextGenerationStub(nn.Module):
    """Has the methods by which vLLM 0.32 recognises a text-generation model; our own runner builds the real one."""

    def __init__(self, *, vllm_config: object, prefix: str = "") -> None:
        super().__init__()

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Part of vLLM's protocol."""
        raise self._never()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Part of vLLM's protocol."""
        raise self._never()

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Part of vLLM's protocol."""
        raise self._never()

    @staticmethod
    def _never() -> AssertionError:
        return AssertionError("the stub of an architecture was run in place of its model")
