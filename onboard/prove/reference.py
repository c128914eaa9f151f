"""What a proof asks of the Hugging Face reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from vllm_neuron.accuracy.calls import HFModel


class HFReference(HFModel, Protocol):
    """A tiny random model of transformers in float32, eval mode, eager attention."""

    @property
    def config(self) -> Any:
        """Its transformers config."""
        ...

    def steady(self, ids: Any) -> bool:
        """Whether rounding errors leave every token's logits where they are."""
        ...

    def save(self, folder: Path) -> Any:
        """Write the checkpoint in its hub layout, with ``config.json``."""
        ...
