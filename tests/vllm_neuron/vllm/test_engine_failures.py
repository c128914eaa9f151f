"""A request whose logits are not finite fails alone: its neighbours, those that share its prefix too, go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from tests.vllm_neuron.vllm.conftest import prompts_of

POISON = 319
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def core(engine: Any) -> Any:
    return engine("llama").llm_engine


@pytest.fixture
def poisoned(core: Any) -> Iterator[None]:
    """The embedding of one token is NaN for the length of a test."""
    weight = core.model_executor.driver_worker.worker.get_model().embed.weight
    kept = weight[POISON].clone()
    yield weight.data[POISON].fill_(float("nan"))
    weight.data[POISON] = kept


def run(core: Any, *, joining: dict[str, tuple[list[int], SamplingParams]], after: int = 0) -> dict[str, Any]:
    """Step until all is done; the requests join one by one, ``after`` steps apart."""
    found: dict[str, Any] = {}
    for name, (prompt, params) in joining.items():
        core.add_request(name, {"prompt_token_ids": prompt}, params)
        for _ in range(after):
            found |= {output.request_id: output for output in core.step()}
    while core.has_unfinished_requests():
        found |= {output.request_id: output for output in core.step()}
    return found


def prompts() -> tuple[list[int], list[int]]:
    """Two prompts with 96 tokens in common; the second goes on with the poison."""
    shared = [token % POISON for token in prompts_of(96)[0]]
    return [*shared, 5, 6, 7], [*shared, 9, POISON, 11]


@pytest.mark.parametrize("after", [0, 3], ids=["same-step", "joins-a-running-one"])
@pytest.mark.parametrize("more", [{}, {"prompt_logprobs": 2}, {"logprobs": 2, "seed": 1}], ids=str)
def test_a_broken_request_fails_alone(core: Any, request: Any, after: int, more: dict[str, int]) -> None:
    good, bad = prompts()
    expected = run(core, joining={"alone": (good, GREEDY)})["alone"].outputs[0].token_ids
    request.getfixturevalue("poisoned")
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, **more)
    found = run(core, joining={"good": (good, GREEDY), "bad": (bad, params)}, after=after)
    assert found["good"].outputs[0].token_ids == expected
    broken = found["bad"].outputs[0]
    assert broken.finish_reason == "error" and "NonFiniteError" in broken.stop_reason
    assert list(broken.token_ids) == []


def test_what_it_leaves_in_the_cache_harms_nobody(core: Any, request: Any) -> None:
    good, bad = prompts()
    request.getfixturevalue("poisoned")
    run(core, joining={"bad": (bad, GREEDY)})
    pages = core.model_executor.driver_worker.worker.runner.bindings.values()
    assert all(bool(torch.isfinite(binding.pages).all()) for binding in pages)
    after = run(core, joining={"again": (good, GREEDY)})["again"].outputs[0]
    assert after.finish_reason == "length" and len(after.token_ids) == 16
