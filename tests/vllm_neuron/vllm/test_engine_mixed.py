"""Engines over layers that differ: latent caches, chunks, head sizes, shared caches. Greedy tokens as step by step."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from tests.support.tokenizer import save_tokenizer
from tests.vllm_neuron.vllm.conftest import prompts_of, tokens_of
from tests.vllm_neuron.vllm.mixed import KINDS, Served, write
from vllm_neuron.accuracy.session import Session
from vllm_neuron.model import registry
from vllm_neuron.model.neuron_config import NeuronConfig

LENGTHS = (1, 39, 40, 41, 48, 49, 97, 130)
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The folder of a model that this process serves, and the model itself for a session."""
    kind = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write(kind, folder)
    save_tokenizer(folder)
    model = getattr(Served, request.param).from_configs(None, NeuronConfig())
    model.load_weights(folder, torch.float32, progress=False)
    with pytest.MonkeyPatch.context() as patch:
        point = EntryPoint(kind.architecture, f"{Served.__module__}:Served.{request.param}", registry.GROUP)
        known = registry.registered() | {kind.architecture: [point]}
        patch.setattr(registry, "registered", lambda: known)
        yield folder, model


def assert_greedy(model: Any, prompt: list[int], tokens: list[int]) -> None:
    """Each token is the model's first choice when all of it is one prefill."""
    logits = Session(model, max_tokens=256).prefill([*prompt, *tokens])[len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 24},
        {"disable_hybrid_kv_cache_manager": True, "max_num_batched_tokens": 24},
        {"enable_prefix_caching": True, "max_num_batched_tokens": 64, "block_size": 16},
    ],
    ids=["whole", "in chunks", "one group", "small blocks"],
)
def test_tokens_are_those_of_one_prefill(served: Any, engine: Any, options: dict[str, Any]) -> None:
    folder, model = served
    prompts = prompts_of(*LENGTHS)
    llm = engine(folder, **options)
    for _ in range(2):  # the second time with cached prefixes
        found = tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False))
        for prompt, tokens in zip(prompts, found, strict=True):
            assert_greedy(model, prompt, tokens)
        assert len({token for tokens in found for token in tokens}) > 20, "a model that says one thing proves nothing"
