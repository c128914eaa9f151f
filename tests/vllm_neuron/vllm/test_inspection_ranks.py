"""Capture, snapshot and replay on two ranks, each a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.vllm_neuron.vllm.conftest import prompts_of
from vllm_neuron.snapshot.index import CaptureFolder
from vllm_neuron.snapshot.replay import replay
from vllm_neuron.vllm.offline import EngineOptions, EngineSource


@pytest.mark.slow
def test_two_ranks(checkpoint: Any, cpu_mode: None, tmp_path: Path) -> None:
    config = {
        "tensor_capture": {"modules": ["layers.*", "layers.0.attn.qkv"], "dir": str(tmp_path / "c")},
        "input_snapshot": {"dir": str(tmp_path / "s"), "steps": ["0-9"], "max_captures": 9},
    }
    options = EngineOptions(
        dtype="float32",
        max_model_len=128,
        max_num_batched_tokens=24,
        tensor_parallel_size=2,
        kv_cache_bytes=1 << 24,
        neuron_config=config,
    )
    prompts = prompts_of(50, 9)
    with EngineSource(checkpoint("gemma3").folder, options, kv=False) as engine:
        answers = engine.generate(prompts, 4)
    folder = CaptureFolder.open(tmp_path / "c")
    assert folder.ranks == [0, 1] and all(folder.about[rank]["stopped"] is None for rank in folder.ranks)
    first, second = (list(folder.records("layers.6", rank=rank)) for rank in folder.ranks)
    assert len(first) > 4 and all(torch.equal(a.output, b.output) for a, b in zip(first, second, strict=True))
    shards = [next(folder.records("layers.0.attn.qkv", rank=rank)).output for rank in folder.ranks]
    assert shards[0].shape == shards[1].shape and not torch.equal(*shards)
    taken = sorted((tmp_path / "s").iterdir())
    assert len(taken) >= 6
    for step in taken:
        found = replay(step)
        assert found.bitwise and {each.rank for each in found.tensors} == {0, 1}, found
    for prompt, tokens in zip(prompts, answers, strict=True):
        checkpoint("gemma3").assert_greedy(prompt, tokens)
