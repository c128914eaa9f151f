"""Some prompts once more, served at the same time: a row of a batch must not see its mates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.sources import LogitsSource, Scored

# Rows of the batch: more than two, so that a row is not only its neighbour's neighbour.
ROWS = 4


@runtime_checkable
class Batching(Protocol):
    """A source that can serve several prompts at once."""

    def score_together(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[Scored]:
        """As ``LogitsSource.score``, for ``(ids, steps)`` of each prompt, side by side."""
        ...


def companions(target: LogitsSource, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The shortest prompts that are decoded, :data:`ROWS` at most; none when the target can't or fewer than two are."""
    if not isinstance(target, Batching):
        return []
    decoded = {prompt.ids: prompt for prompt in reversed(prompts) if prompt.steps}
    chosen = sorted(decoded.values(), key=lambda prompt: len(prompt.ids))[:ROWS]
    return chosen if len(chosen) > 1 else []


def in_batch(target: LogitsSource, prompts: Sequence[Prompt]) -> list[tuple[Prompt, LogitsSource]]:
    """The companions among some prompts, named as such, each with the source that answers for the whole batch."""
    mates = companions(target, prompts)
    batch = SideBySide(target, mates) if mates else None
    return [] if batch is None else [(replace(p, name=f"{p.name}, in a batch of {len(mates)}"), batch) for p in mates]


class SideBySide:
    """A target of which each prompt is asked alone, while all of them were served in one batch.

    Args:
        target: what serves; a :class:`Batching` source.
        prompts: served together, at the first question.
    """

    def __init__(self, target: LogitsSource, prompts: Sequence[Prompt]) -> None:
        assert isinstance(target, Batching)
        self._batching: Batching = target
        self._prompts = [(prompt.ids, prompt.steps) for prompt in prompts]
        self._scored: dict[tuple[int, ...], Scored] = {}
        self.name, self.dtype = target.name, target.dtype
        self.vocab_size, self.tokenizer_id = target.vocab_size, target.tokenizer_id

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`; a prompt's logits are handed out once."""
        ids = tuple(prompt_ids)
        if ids not in self._scored:
            found = self._batching.score_together(self._prompts)
            self._scored = {asked: one for (asked, _), one in zip(self._prompts, found, strict=True)}
        return self._scored.pop(ids)
