"""Sources made of numbers: logits and caches whose errors are built as those of real bf16 runs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.sources import LayerKV, Scored
from vllm_neuron.errors import NeuronError

VOCAB, HIDDEN = 500, 24


@dataclass
class Fixed:
    """A source that gives one answer."""

    scored: Scored
    name: str = "fixed"
    vocab_size: int = VOCAB
    dtype: str = "bfloat16"
    tokenizer_id: str | None = None
    raises: NeuronError | None = None
    asked: list[tuple[tuple[int, ...], int]] = field(default_factory=list)

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        self.asked.append((tuple(prompt_ids), steps))
        if self.raises is not None:
            raise self.raises
        return self.scored


@dataclass
class Case:
    """A prompt and the three sides' answers to it."""

    prompt: Prompt
    gold: Tensor
    base: Tensor
    mine: Tensor
    kv: tuple[tuple[LayerKV, ...], ...] | None = None

    @classmethod
    def make(cls, seed: int, length: int = 80, *, noise: float = 1.0, kv: bool = False) -> Case:
        """Errors of a position move together and vary in size from position to position, as those of real runs."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        head = normal(HIDDEN, VOCAB)
        hidden = normal(length, HIDDEN)
        hard = (0.4 * normal(length, 1)).exp()

        def run(size: float) -> Tensor:
            rows = hard * (0.3 * normal(length, 1)).exp()
            return ((hidden + 0.02 * size * rows * normal(length, HIDDEN)) @ head).bfloat16()

        ids = tuple(torch.randint(1, VOCAB, (length,), generator=generator).tolist())
        caches = None
        if kv:
            exact = [(normal(length, 2, 8), normal(length, 2, 8)) for _ in range(3)]
            caches = tuple(
                tuple(
                    LayerKV(i, *((x + 0.005 * size * normal(length, 2, 8)).bfloat16() for x in pair))
                    for i, pair in enumerate(exact)
                )
                for size in (1.0, noise)
            )
            gold = tuple(LayerKV(i, *pair) for i, pair in enumerate(exact))
            caches = (gold, *caches)
        return cls(Prompt("made", ids, length // 4), hidden @ head, run(1.0), run(noise), caches)

    def sources(self) -> tuple[Fixed, Fixed, Fixed]:
        """Target, expected, baseline."""
        ids = self.prompt.ids
        gold_kv, base_kv, mine_kv = self.kv or (None, None, None)
        return (
            Fixed(Scored(self.mine, ids, kv=mine_kv), "target"),
            Fixed(Scored(self.gold, ids, kv=gold_kv), "gold", dtype="float32"),
            Fixed(Scored(self.base, ids, kv=base_kv), "baseline"),
        )

    def with_mine(self, mine: Tensor) -> Case:
        """The same with other logits of the target."""
        return replace(self, mine=mine)
