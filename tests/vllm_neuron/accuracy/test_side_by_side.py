"""Prompts that are served once more in one batch: a fault that needs mates to show is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.vllm_neuron.accuracy.synthetic import VOCAB, Case
from vllm_neuron.accuracy.logit_validation import logit_validation
from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.results import PromptResult
from vllm_neuron.accuracy.side_by_side import ROWS, companions
from vllm_neuron.accuracy.sources import Scored
from vllm_neuron.errors import UnsupportedError


@dataclass
class Many:
    """A source that knows several prompts."""

    answers: dict[tuple[int, ...], Scored]
    dtype: str = "bfloat16"
    name: str = "many"
    vocab_size: int = VOCAB
    tokenizer_id: str | None = None

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        return self.answers[tuple(prompt_ids)]


@dataclass
class Batched(Many):
    """One that serves them together too; ``spoil`` is done to the last row of a batch."""

    spoil: Any = None
    batches: list[int] = field(default_factory=list)

    def score_together(self, prompts: Sequence[tuple[Sequence[int], int]]) -> list[Scored]:
        self.batches.append(len(prompts))
        found = [self.answers[tuple(ids)] for ids, _ in prompts]
        if self.spoil is not None:
            found[-1] = self.spoil(found[-1])
        return found


def sides(kind: type[Many], **options: Any) -> tuple[Many, Many, Many, list[Prompt]]:
    cases = [Case.make(seed, 30 + 10 * seed) for seed in range(1, 6)]
    made = [case.sources() for case in cases]
    ids = [tuple([seed, *case.prompt.ids[1:]]) for seed, case in enumerate(cases)]
    target, gold, base = (
        {one: replace(each[side].scored, seen_ids=one) for one, each in zip(ids, made, strict=True)}
        for side in range(3)
    )
    prompts = [Prompt(f"p{number}", one, 8) for number, one in enumerate(ids)]
    return kind(target, **options), Many(gold, "float32"), Many(base), prompts


def rolled(scored: Scored) -> Scored:
    """The last positions have the logits of others."""
    assert scored.logits_TV is not None
    return replace(scored, logits_TV=torch.cat((scored.logits_TV[:-4], scored.logits_TV[-4:].roll(1, 0))))


def test_the_shortest_prompts_that_are_decoded_are_served_together() -> None:
    target, _, _, prompts = sides(Batched)
    assert [prompt.name for prompt in companions(target, prompts)] == ["p0", "p1", "p2", "p3"]
    assert companions(target, [replace(prompts[0], steps=0), prompts[1]]) == []
    twice = [prompts[0], replace(prompts[0], name="again"), prompts[1]]
    assert [prompt.name for prompt in companions(target, twice)] == ["p0", "p1"]
    assert companions(sides(Many)[0], prompts) == []


def test_a_batch_that_is_right_passes_and_is_made_once() -> None:
    target, gold, base, prompts = sides(Batched)
    level = logit_validation(target, prompts, expected=gold, baseline=base)
    assert level.passed and isinstance(target, Batched) and target.batches == [ROWS]
    assert [prompt.name for prompt in level.prompts[5:]] == [f"p{i}, in a batch of 4" for i in range(4)]
    assert not any("one by one" in note for note in level.notes)


def test_a_fault_that_needs_mates_is_found() -> None:
    target, gold, base, prompts = sides(Batched, spoil=rolled)
    level = logit_validation(target, prompts, expected=gold, baseline=base)
    assert level.outcome == "fail"
    assert [prompt.name for prompt in level.prompts if not prompt.passed] == ["p3, in a batch of 4"]


def test_a_batch_that_can_not_run_is_said() -> None:
    def gone(scored: Scored) -> Scored:
        raise UnsupportedError("batch", "gone", "an answer")

    target, gold, base, prompts = sides(Batched, spoil=gone)
    level = logit_validation(target, prompts, expected=gold, baseline=base)
    assert level.outcome == "not run" and all(prompt.passed for prompt in level.prompts[:5])


def test_a_target_that_serves_one_by_one_is_told() -> None:
    target, gold, base, prompts = sides(Many)
    level = logit_validation(target, prompts, expected=gold, baseline=base)
    assert level.passed and len(level.prompts) == 5
    assert "the prompts were served one by one; what a batch does is not covered" in level.notes


def test_the_place_is_looked_for_once() -> None:
    target, gold, base, prompts = sides(Many)
    target.answers = {ids: rolled(scored) for ids, scored in target.answers.items()}
    asked: list[str] = []

    def locate(result: PromptResult) -> None:
        asked.append(result.name)

    level = logit_validation(target, prompts, expected=gold, baseline=base, locate=locate)
    assert level.outcome == "fail" and asked == ["p0"]
