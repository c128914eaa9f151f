"""Whole models through vLLM with every operation on an NKI kernel, on the stand-in: the tokens of the torch path."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vllm import SamplingParams

import vllm_neuron.functional as NF
from tests.vllm_neuron.vllm.conftest import prompts_of, tokens_of
from vllm_neuron.nki.backend import CORES_VARIABLE

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LENGTHS = (1, 7, 33, 64, 70, 120)  # the last two in chunks: the second one is an EXTEND
OPTIONS = {"enable_prefix_caching": False, "max_num_batched_tokens": 64}
STEP_SECONDS = 1.0


def ask(llm: Any, prompts: list[list[int]]) -> list[list[int]]:
    return tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False))


def counted() -> dict[tuple[str, str], int]:
    return NF.calls()


@pytest.mark.parametrize(("name", "cores"), [("llama", "1"), ("llama", "2"), ("gemma3", "1")])
def test_kernels_give_the_tokens_of_torch(
    name: str, cores: str, engine: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORES_VARIABLE, cores)
    prompts = prompts_of(*LENGTHS)
    before, refused = counted(), NF.refusals()
    with NF.use_kernels("require"):
        found = ask(engine(name, **OPTIONS, seed=int(cores)), prompts)
    ran = {key for key, count in counted().items() if count > before.get(key, 0)}
    for prompt, tokens in zip(prompts, found, strict=True):
        checkpoint(name).assert_greedy(prompt, tokens)
    with NF.use_kernels("auto"):
        assert ask(engine(name, **OPTIONS), prompts) == found
    assert NF.refusals() == refused
    kernels = {operation: kernel for operation, kernel in ran if kernel != "compiler"}
    assert {"flash_attention", "segmented_attention", "attention_decode", "kv_write", "mlp", "qkv_proj"} <= set(kernels)
    assert all(kernel.startswith("nki.") for kernel in kernels.values())
    assert {operation for operation, kernel in ran if kernel == "compiler"} == {"embedding"}


def test_a_decode_step_of_two_layers_takes_less_than_a_second(engine: Any) -> None:
    with NF.use_kernels("require"):
        llm = engine("llama", **OPTIONS, seed=1)
        assert llm.llm_engine.model_config.hf_config.num_hidden_layers >= 2
        ask(llm, prompts_of(8))
        begin = time.perf_counter()
        ask(llm, prompts_of(9))
    assert (time.perf_counter() - begin) / GREEDY.max_tokens < STEP_SECONDS


def test_bfloat16_runs_on_kernels_too(engine: Any) -> None:
    with NF.use_kernels("require"):
        found = ask(engine("llama", **OPTIONS, dtype="bfloat16"), prompts_of(7, 70))
    assert [len(tokens) for tokens in found] == [GREEDY.max_tokens] * 2
