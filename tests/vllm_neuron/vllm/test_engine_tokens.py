"""Greedy tokens of real engines: equal to transformers, and the same by every path through scheduler and cache."""

from __future__ import annotations

from typing import Any

import pytest
from vllm import SamplingParams

from tests.vllm_neuron.vllm.conftest import prompts_of, tokens_of

NAMES = ["llama", "gemma3"]  # gemma3: six layers of seven see 40 tokens
# Blocks for one request of the longest length, and a little more: each of Gemma's seven layers has a group.
TIGHT = {"llama": 18, "gemma3": 60}
LENGTHS = (1, 7, 33, 39, 40, 41, 64, 120, 255, 256, 257, 300)
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def ask(llm: Any, prompts: list[list[int]], params: Any = GREEDY) -> list[list[int]]:
    return tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False))


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(name: str, engine: Any, checkpoint: Any) -> list[list[int]]:
    """Tokens of a batch, each checked against transformers."""
    prompts = prompts_of(*LENGTHS)
    found = ask(engine(name, enable_prefix_caching=False), prompts)
    for prompt, tokens in zip(prompts, found, strict=True):
        checkpoint(name).assert_greedy(prompt, tokens)
    return found


def test_a_wrong_token_would_be_seen(name: str, expected: list[list[int]], checkpoint: Any) -> None:
    wrong = [*expected[-1][:-1], (expected[-1][-1] + 1) % 320]
    with pytest.raises(AssertionError):
        checkpoint(name).assert_greedy(prompts_of(*LENGTHS)[-1], wrong)


def test_batched_equals_single(name: str, engine: Any, expected: list[list[int]]) -> None:
    llm = engine(name, enable_prefix_caching=False)
    assert [ask(llm, [prompt])[0] for prompt in prompts_of(*LENGTHS)] == expected


def test_chunked_equals_whole(name: str, engine: Any, expected: list[list[int]]) -> None:
    llm = engine(name, max_num_batched_tokens=24)
    assert ask(llm, prompts_of(*LENGTHS)) == expected


def test_cached_prefix_equals_cold(name: str, engine: Any, expected: list[list[int]]) -> None:
    llm = engine(name, max_num_batched_tokens=24)
    ask(llm, prompts_of(*LENGTHS))
    warm = llm.generate([{"prompt_token_ids": p} for p in prompts_of(*LENGTHS)], GREEDY, use_tqdm=False)
    assert tokens_of(warm) == expected
    assert warm[-1].num_cached_tokens >= 256 and warm[7].num_cached_tokens >= 96


def test_preempted_and_resumed_equals_undisturbed(name: str, engine: Any, checkpoint: Any) -> None:
    """Eight requests start in few blocks and grow until some are thrown out, which start again later."""
    llm = engine(name, num_gpu_blocks_override=TIGHT[name], max_num_batched_tokens=64, disable_log_stats=False)
    prompts = prompts_of(*[50 + i for i in range(8)], seed=8)
    found = ask(llm, prompts, SamplingParams(temperature=0, max_tokens=120, ignore_eos=True))
    metrics = {m.name: m for m in llm.get_metrics()}
    assert metrics["vllm:num_preemptions"].value > 0
    for prompt, tokens in zip(prompts, found, strict=True):
        assert len(tokens) == 120
        checkpoint(name).assert_greedy(prompt, tokens)


def test_mixed_prefill_and_decode(name: str, engine: Any, expected: list[list[int]]) -> None:
    """Requests that join one after the other, so that chunks and decodes share steps; one is aborted on the way."""
    core = engine(name, max_num_batched_tokens=24).llm_engine
    waiting = {str(i): prompt for i, prompt in enumerate(prompts_of(*LENGTHS))}
    waiting["gone"] = prompts_of(200, seed=9)[0]
    found: dict[str, list[int]] = {}
    step = 0
    while waiting or core.has_unfinished_requests():
        if waiting and step % 3 == 0:
            request = next(iter(waiting))
            core.add_request(request, {"prompt_token_ids": waiting.pop(request)}, GREEDY)
        for output in core.step():
            if output.request_id == "gone":
                core.abort_request(["gone"])
            elif output.finished:
                found[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
    assert [found[str(i)] for i in range(len(LENGTHS))] == expected
    assert "gone" not in found


def test_windowed_layers_have_groups_of_their_own(engine: Any) -> None:
    """Gemma 3's full layer and its six windowed layers: hybrid groups, one window each."""
    runner = engine("gemma3", enable_prefix_caching=False).llm_engine.model_executor.driver_worker.worker.runner
    assert {group.window for group in runner.builder.groups} == {None, 40}
    assert len({binding.group for binding in runner.bindings.values()}) == len(runner.builder.groups) >= 2


def test_lengths_that_are_no_multiple_of_a_block(engine: Any, checkpoint: Any) -> None:
    """Warm-up of every shape stays below max_model_len, where the rotary table ends."""
    for length in (10, 100):
        llm = engine("llama", max_model_len=length, additional_config={"neuron_config": {"warmup": "all"}})
        prompt = prompts_of(length - 5)[0]
        tokens = ask(llm, [prompt], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))[0]
        checkpoint("llama").assert_greedy(prompt, tokens)
