"""A random load on small engines: requests join, grow, are thrown out, aborted or broken; the others are right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from tests.vllm_neuron.vllm.conftest import Checkpoint
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.vllm.worker.buckets import plan
from vllm_neuron.vllm.worker.inputs import Batch, StepBuilder
from vllm_neuron.vllm.worker.kv import GroupShape

POISON = 319
REQUESTS = 40
BUCKETS = {"num_batched_tokens_buckets": [32, 96], "num_seqs_buckets": [3, 7],
           "decode_context_length_buckets": [96, 512]}  # fmt: skip
CONFIGS = {
    "chunks-in-few-blocks": {"max_num_batched_tokens": 24, "blocks": {"llama": 20, "gemma3": 70}},
    "priorities": {"max_num_batched_tokens": 37, "max_num_seqs": 5, "scheduling_policy": "priority"},
    "whole-prompts-every-bucket-warmed": {
        "enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_num_seqs": 6,
        "additional_config": {"neuron_config": {"warmup": "all"}}, "blocks": {"llama": 24, "gemma3": 130},
    },
    "buckets-of-the-user": {"max_num_batched_tokens": 96, "max_num_seqs": 7,
                            "additional_config": {"neuron_config": BUCKETS}},
}  # fmt: skip


class Load:
    """Random requests with common prefixes; some hold the poison, some are aborted."""

    def __init__(self, seed: int, *, priorities: bool) -> None:
        self.random = random.Random(seed)
        self.priorities = priorities
        shared = [self.random.randrange(3, POISON) for _ in range(300)]
        self.prompts: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}
        self.poisoned: set[str] = set()
        self.aborted: list[str] = []
        for name in map(str, range(REQUESTS)):
            length = self.random.choice([1, 2, 5, 31, 32, 33, 40, 64, 90, 128, 200, 300])
            prompt = shared[: self.random.randrange(length + 1)]
            prompt = prompt + [self.random.randrange(3, POISON) for _ in range(length - len(prompt))]
            kind = self.random.random()
            if kind < 0.12:
                prompt[self.random.randrange(length)] = POISON
                self.poisoned.add(name)
            elif kind < 0.2:
                self.aborted.append(name)
            self.prompts[name] = prompt
            self.params[name] = SamplingParams(
                temperature=0,
                max_tokens=self.random.choice([1, 3, 20, 60]),
                ignore_eos=True,
                logit_bias={POISON: -100.0},
                prompt_logprobs=self.random.choice([None, None, 1]),
            )

    def run(self, core: Any) -> dict[str, Any]:
        """The last output of each request."""
        waiting, found = list(self.prompts), {}
        while waiting or core.has_unfinished_requests():
            for _ in range(self.random.choice([0, 0, 1, 3])):
                if waiting:
                    name = waiting.pop(0)
                    more = {"priority": self.random.randrange(3)} if self.priorities else {}
                    core.add_request(name, {"prompt_token_ids": self.prompts[name]}, self.params[name], **more)
            found |= {output.request_id: output for output in core.step()}
            if self.aborted and self.random.random() < 0.2:
                core.abort_request([self.random.choice(self.aborted)])
        return found

    def check(self, name: str, output: Any, model: Checkpoint) -> None:
        """A request's end is what it should be."""
        prompt, params, answer = self.prompts[name], self.params[name], output.outputs[0]
        if name in self.poisoned:
            assert (answer.finish_reason, list(answer.token_ids)) == ("error", []), name
            return
        assert (answer.finish_reason, len(answer.token_ids)) == ("length", params.max_tokens), name
        scores = model.logits([*prompt, *answer.token_ids])
        scores[:, POISON] -= 100
        assert scores[len(prompt) - 1 : -1].argmax(-1).tolist() == list(answer.token_ids), name
        if params.prompt_logprobs is not None:
            scores[:, POISON] += 100
            rows = scores.log_softmax(-1)
            for row, token, found in zip(rows, prompt[1:], output.prompt_logprobs[1:], strict=False):
                assert found[token].logprob == pytest.approx(float(row[token]), abs=1e-4), name


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_random_load(name: str, config: str, engine: Any, checkpoint: Any) -> None:
    options = dict(CONFIGS[config])
    if "blocks" in options:
        options["num_gpu_blocks_override"] = options.pop("blocks")[name]
    core = engine(name, disable_log_stats=False, **options).llm_engine
    load = Load(1, priorities="scheduling_policy" in options)
    weight = core.model_executor.driver_worker.worker.get_model().embed.weight
    kept = weight[POISON].clone()
    pool = core.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    try:
        weight.data[POISON] = torch.nan
        found = load.run(core)
    finally:
        weight.data[POISON] = kept
    assert len(load.poisoned) >= 3 and len(load.aborted) >= 2
    for request in load.prompts:
        if request not in load.aborted:
            load.check(request, found[request], checkpoint(name))
    assert pool.get_num_free_blocks() == free


@pytest.mark.parametrize("window", [None, 40])
def test_old_entries_of_a_block_table_are_never_read(window: int | None) -> None:
    """What follows a row's own blocks may be another request's, with a NaN that no mask holds back."""
    buckets = plan(NeuronConfig(), max_tokens=64, max_rows=4, max_model_len=256, block_sizes=[32])
    builder = StepBuilder(buckets, [GroupShape(32, window, None)])
    table = np.full((2, 8), 99, np.int32)
    table[0, :2], table[1, :5] = [11, 12], [21, 22, 23, 24, 25]
    ids = np.zeros((2, 256), np.int32)
    batch = Batch(ids, np.array([40, 130], np.int32), np.array([1, 1], np.int32), [table])
    blocks = builder.decode(batch, np.array([0, 1])).step.views[0].blocks_BM
    chunk = Batch(ids, np.array([40, 130], np.int32), np.array([20, 20], np.int32), [table])
    more = builder.extend(chunk, 0).step.views[0].blocks_BM
    assert blocks is not None and more is not None
    assert 99 not in blocks and 99 not in more
    assert {11, 12} <= set(blocks[0].tolist()) and 25 in blocks[1] and {11, 12} <= set(more[0].tolist())
