"""Hugging Face as a source for level 1: short texts, scored once, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.sources import Scored


class TransformersSource:
    """A :class:`~vllm_neuron.accuracy.sources.LogitsSource` that can also continue a text.

    Args:
        reference: the model.
        tokenizer_id: hash of its tokenizer.
    """

    def __init__(self, reference: HFReference, tokenizer_id: str | None = None) -> None:
        self.model = reference.model
        self.tokenizer_id = tokenizer_id

    @property
    def name(self) -> str:
        """In words, for reports."""
        return f"Hugging Face, {self.dtype}"

    @property
    def dtype(self) -> str:
        """``float32``, ``bfloat16``, ..."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.model.config.get_text_config().vocab_size)

    @torch.no_grad()
    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """All positions in one pass, whatever ``steps`` says; logits [T, V] in the model's dtype."""
        logits = self.model(torch.tensor([list(prompt_ids)]), use_cache=False).logits[0]
        return Scored(logits, tuple(prompt_ids))

    @torch.no_grad()
    def generate(self, prompt_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """Greedy continuation without the stop token."""
        ids = torch.tensor([list(prompt_ids)])
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=list(stop_ids),
            pad_token_id=stop_ids[0],
        )
        found = tuple(made[0, len(prompt_ids) :].tolist())
        return found[:-1] if found and found[-1] in stop_ids else found
