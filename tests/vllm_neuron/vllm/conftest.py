"""Tiny checkpoints with tokenizers, and engines in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

CPU_MODE = {"VLLM_NEURON_CPU_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NEURON_CPU_THREADS": "1"}

with pytest.MonkeyPatch.context() as environment:
    # vLLM asks for the platform once in a process, at the first import that needs it.
    for variable in CPU_MODE.items():
        environment.setenv(*variable)
    from vllm.platforms import current_platform

    CHOSEN = current_platform.device_name

from tests.support.hf import MODELS  # noqa: E402
from tests.support.tokenizer import save_tokenizer  # noqa: E402


@pytest.fixture(scope="session")
def cpu_mode() -> Iterator[None]:
    """The variables of CPU mode, for as long as a test needs them."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in CPU_MODE.items():
            patch.setenv(*variable)
        yield


@dataclass(frozen=True)
class Checkpoint:
    """A saved tiny model and its float32 reference."""

    folder: Path
    reference: Any

    @torch.no_grad()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """[T, V] of the reference."""
        return self.reference(torch.tensor([ids])).logits[0].float()

    def assert_greedy(self, prompt: list[int], tokens: list[int]) -> None:
        """Teacher-forced: each token is the reference's first choice after the prompt and the tokens before it."""
        logits = self.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(tokens)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Tiny checkpoints by name, each written once."""
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            reference = MODELS[name].save(folder)
            save_tokenizer(folder)
            made[name] = Checkpoint(folder, reference)
        return made[name]

    return get


@pytest.fixture(scope="module")
def engine(checkpoint: Callable[[str], Checkpoint], cpu_mode: None) -> Iterator[Callable[..., Any]]:
    """``engine(name, **options)`` -> ``vllm.LLM``; equal calls in a module share one."""
    from vllm import LLM

    running: dict[str, Any] = {}

    def start(name: str | Path, **options: Any) -> Any:
        key = f"{name} {sorted(options.items())}"
        if key not in running:
            folder = name if isinstance(name, Path) else checkpoint(name).folder
            defaults = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "seed": 0}
            defaults |= {"kv_cache_memory_bytes": 1 << 24, "disable_log_stats": True}
            running[key] = LLM(str(folder), **(defaults | options))
        return running[key]

    yield start
    for llm in running.values():
        llm.llm_engine.engine_core.shutdown()
    running.clear()
    gc.collect()


def tokens_of(outputs: list[Any]) -> list[list[int]]:
    """Token ids of the first completion of each request."""
    return [list(output.outputs[0].token_ids) for output in outputs]


def prompts_of(*lengths: int, seed: int = 3) -> list[list[int]]:
    """Random prompts of token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 320, (length,), generator=generator).tolist() for length in lengths]
