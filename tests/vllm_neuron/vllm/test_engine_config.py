"""Engine options: refused by name where they would be ignored, honoured where they are not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.usage.usage_lib import UsageContext
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from tests.vllm_neuron.vllm.conftest import prompts_of, tokens_of
from vllm_neuron.errors import CheckpointError, ConfigError, UnsupportedError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def configure(checkpoint: Any, usage: UsageContext = UsageContext.LLM_CLASS, **options: Any) -> VllmConfig:
    """What ``LLM(...)`` makes of its options, without an engine."""
    defaults = {"dtype": "float32", "max_model_len": 512}
    return EngineArgs(model=str(checkpoint("llama").folder), **(defaults | options)).create_engine_config(usage)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"enable_lora": True}, "enable_lora"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative_config"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"runner": "pooling"}, "runner"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype"),
        ({"load_format": "dummy"}, "load_format"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds"),
        ({"profiler_config": {"profiler": "torch", "torch_profiler_dir": "/nowhere"}}, "profiler_config"),
        ({"cpu_offload_gb": 2}, "cpu_offload_gb"),
        ({"attention_backend": "FLASH_ATTN"}, "attention_backend"),
        ({"kv_sharing_fast_prefill": True}, "kv_sharing_fast_prefill"),
        ({"kv_offloading_size": 1.0}, "kv_offloading_size|kv_transfer_config"),
        ({"kv_cache_dtype_skip_layers": ["0"]}, "kv_cache_dtype_skip_layers"),
        ({"weight_transfer_config": {"backend": "nccl"}}, "weight_transfer_config"),
        ({"model_loader_extra_config": {"foo": 1}}, "model_loader_extra_config"),
        ({"ignore_patterns": ["*.safetensors"]}, "ignore_patterns"),
        ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "scheduler_cls"),
        ({"additional_config": {"neuron_config": {"num_seq_buckets": [1]}}}, "Did you mean 'num_seqs_buckets'"),
        ({"additional_config": {"neurons": 1}}, "additional_config.neurons"),
        ({"additional_config": {"neuron_config": {"quantization": "fp8"}}}, "neuron_config.quantization"),
        ({"tensor_parallel_size": 3}, "4 query heads and 2 KV heads evenly: 1, 2, 4"),
    ],
    ids=str,
)
def test_refused_by_name(checkpoint: Any, cpu_mode: None, options: dict[str, Any], name: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError, ValueError), match=name):
        configure(checkpoint, **options)


@pytest.mark.parametrize("usage", [UsageContext.LLM_CLASS, UsageContext.OPENAI_API_SERVER])
def test_default_limits_do_not_follow_the_memory_of_the_machine(checkpoint: Any, cpu_mode: None, usage: Any) -> None:
    limits = configure(checkpoint, usage).scheduler_config
    assert (limits.max_num_batched_tokens, limits.max_num_seqs) == (2048, 128)
    chosen = configure(checkpoint, usage, max_num_batched_tokens=64, max_num_seqs=3).scheduler_config
    assert (chosen.max_num_batched_tokens, chosen.max_num_seqs) == (64, 3)


def test_async_scheduling_is_off_and_said_so(checkpoint: Any, cpu_mode: None, caplog: Any, monkeypatch: Any) -> None:
    import logging

    monkeypatch.setattr(logging.getLogger("vllm_neuron"), "propagate", True)
    with caplog.at_level("INFO", logger="vllm_neuron"):
        assert not configure(checkpoint, async_scheduling=True).scheduler_config.async_scheduling
    assert "async_scheduling is off" in caplog.text


def test_longer_than_the_model(checkpoint: Any, cpu_mode: None) -> None:
    with pytest.raises(ValueError, match="512"):
        configure(checkpoint, max_model_len=513)


def edited(checkpoint: Any, folder: Path, old: str, new: str) -> Path:
    """A copy of the tiny Llama with another ``config.json``."""
    shutil.copytree(checkpoint("llama").folder, folder, dirs_exist_ok=True)
    text = (folder / "config.json").read_text()
    assert old in text
    (folder / "config.json").write_text(text.replace(old, new))
    return folder


def test_unknown_architecture_lists_the_registered_ones(checkpoint: Any, cpu_mode: None, tmp_path: Path) -> None:
    folder = edited(checkpoint, tmp_path, "LlamaForCausalLM", "OlmoForCausalLM")
    with pytest.raises((UnsupportedError, ValueError)) as caught:
        EngineArgs(model=str(folder), dtype="float32").create_engine_config()
    for words in ("OlmoForCausalLM", "Gemma3ForCausalLM, Gemma4ForCausalLM", "vllm_neuron.models", "add-a-model"):
        assert words in str(caught.value)


def test_a_wrong_variable_stops_the_engine(checkpoint: Any, cpu_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_CPU_THREADS", "many")
    with pytest.raises((ConfigError, ValueError), match="VLLM_NEURON_CPU_THREADS"):
        configure(checkpoint)


def test_checkpoint_faults_come_out_of_the_engine(checkpoint: Any, engine: Any, tmp_path: Path) -> None:
    folder = edited(checkpoint, tmp_path, "LlamaForCausalLM", "LlamaForCausalLM")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        engine(folder)


def test_too_long_a_prompt_is_refused_and_the_engine_goes_on(engine: Any, checkpoint: Any) -> None:
    llm = engine("llama")
    with pytest.raises(VLLMValidationError, match="512"):
        llm.generate([{"prompt_token_ids": [5] * 513}], GREEDY, use_tqdm=False)
    prompt = prompts_of(20)[0]
    checkpoint("llama").assert_greedy(prompt, tokens_of(llm.generate([{"prompt_token_ids": prompt}], GREEDY))[0])


def test_length_that_fits_the_cache(engine: Any, checkpoint: Any) -> None:
    """``max_model_len=-1`` and a small cache: vLLM shrinks the length, and the buckets follow."""
    llm = engine("llama", max_model_len=-1, kv_cache_memory_bytes=10 * 32 * 2 * 2 * 16 * 4 * 4)
    runner = llm.llm_engine.model_executor.driver_worker.worker.runner
    length = llm.llm_engine.model_config.max_model_len
    assert 128 <= length < 320 and runner.buckets.context[-1] - length < 32
    prompt = prompts_of(length - 8)[0]
    checkpoint("llama").assert_greedy(prompt, tokens_of(llm.generate([{"prompt_token_ids": prompt}], GREEDY))[0])


def test_block_size_of_the_user(engine: Any, checkpoint: Any) -> None:
    llm = engine("llama", block_size=16)
    prompts = prompts_of(15, 16, 17, 100)
    found = tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], GREEDY, use_tqdm=False))
    assert llm.llm_engine.model_executor.driver_worker.worker.runner.builder.groups[0].block_size == 16
    for prompt, tokens in zip(prompts, found, strict=True):
        checkpoint("llama").assert_greedy(prompt, tokens)


class Favourite(AdapterLogitsProcessor):
    """A logits processor of a user: requests that name a token get it, always."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        token = (params.extra_args or {}).get("favourite")
        return None if token is None else lambda ids, logits: logits.index_fill(0, torch.tensor(token), 1e3)


def test_logits_processors_of_the_engine(engine: Any, checkpoint: Any) -> None:
    llm = engine("llama", logits_processors=[Favourite])
    prompts = prompts_of(9, 10)
    fond = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, extra_args={"favourite": 77})
    found = tokens_of(llm.generate([{"prompt_token_ids": p} for p in prompts], [fond, GREEDY], use_tqdm=False))
    assert found[0] == [77] * 8
    checkpoint("llama").assert_greedy(prompts[1], found[1])
