"""Counts against integers that the reference models have on the meta device, and against sums done by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onboard import catalog
from onboard.arch import count
from onboard.arch.spec import ArchSpec
from onboard.facts.api import load
from vllm_neuron.errors import ConfigError

TEXT_PARAMS: dict[str, int] = json.loads((Path(__file__).parent / "text_params.json").read_text())


def arch(name: str) -> ArchSpec:
    return load(name).arch


@pytest.mark.parametrize("name", sorted(TEXT_PARAMS))
def test_parameters_equal_the_reference(name: str) -> None:
    assert count.params(arch(name)).total == TEXT_PARAMS[name]


def test_every_model_with_a_known_count_is_in_the_catalog() -> None:
    assert set(TEXT_PARAMS) <= set(catalog.names())
    assert len(TEXT_PARAMS) >= 83


@pytest.mark.parametrize("name", catalog.names())
def test_counts_are_consistent(name: str) -> None:
    spec = arch(name)
    p = count.params(spec)
    assert 0 < p.embedding < p.total
    assert p.active <= p.total
    has_experts = any(kind.moe for kind in spec.kinds)
    untied = 0 if spec.head.tied else spec.embedding.vocab * spec.embedding.size
    if not has_experts:
        assert p.active == p.total - p.embedding + (spec.embedding.vocab * spec.embedding.size - untied)
    else:
        assert p.active < 0.7 * p.total


def test_active_parameters_of_mixtral_by_hand() -> None:
    h, i, v, layers = 4096, 14336, 32000, 32
    attention = 2 * h * h + 2 * h * 1024
    layer = attention + 8 * h + 2 * 3 * h * i + 2 * h
    assert count.params(arch("mistralai/Mixtral-8x7B-v0.1")).active == layers * layer + h + v * h


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("meta-llama/Llama-3.1-8B", 32 * 2 * 8 * 128),
        ("deepseek-ai/DeepSeek-V3", 61 * (512 + 64)),
        ("google/gemma-4-31B-it", 50 * 2 * 16 * 256 + 10 * 2 * 4 * 512),
        ("google/gemma-4-E2B-it", 12 * 2 * 256 + 3 * 2 * 512),
        ("tiiuae/falcon-7b", 32 * 2 * 64),
        ("NX-AI/xLSTM-7b", 0),
        ("LiquidAI/LFM2.5-VL-1.6B", 6 * 2 * 8 * 64),
        ("zai-org/GLM-5", 78 * (512 + 64) + 78 * 128),
    ],
)
def test_kv_bytes_per_token_by_hand(name: str, values: int) -> None:
    assert count.kv_bytes_per_token(arch(name), "bfloat16") == 2 * values
    assert count.kv_bytes_per_token(arch(name), "float32") == 4 * values


def test_kv_bytes_by_kind_names_each_kind() -> None:
    kinds = count.kv_bytes_by_kind(arch("google/gemma-4-31B-it"))
    assert kinds == {"sliding": 50 * 2 * 16 * 256 * 2, "full": 10 * 2 * 4 * 512 * 2}
    assert set(count.kv_bytes_by_kind(arch("zai-org/GLM-5"))) == {"mla", "indexer"}


def test_compressed_history_counts_by_its_share() -> None:
    kinds = count.kv_bytes_by_kind(arch("deepseek-ai/DeepSeek-V4-Flash"))
    assert kinds["sliding"] == 2 * 512 * 2
    assert kinds["compressed"] == (41 * 512 + 21 * 512 // 4 + 20 * 512 // 128) * 2
    assert kinds["indexer"] == 21 * 128 // 4 * 2


def test_unknown_dtype_is_named() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        count.kv_bytes_per_token(arch("openai-community/gpt2"), "bfloat61")


def test_F3_windows_cap_what_is_kept() -> None:
    spec = arch("google/gemma-4-31B-it")
    assert count.layer_tokens(spec, 65536) == 706_560
    assert 60 * 65536 == 3_932_160


def test_F5_window_counts_the_token_itself() -> None:
    from dataclasses import replace

    sliding = next(k for k in arch("google/gemma-2-2b").kinds if k.attention and k.attention.window)
    assert sliding.attention is not None
    narrow = replace(sliding, attention=replace(sliding.attention, window=2))
    assert [count.kept_tokens(narrow, t) for t in (1, 2, 3, 4)] == [1, 2, 2, 2]


def test_kv_bytes_of_a_long_sequence_is_less_than_the_rate() -> None:
    spec = arch("google/gemma-4-31B-it")
    assert count.kv_bytes(spec, 100) == 100 * count.kv_bytes_per_token(spec)
    assert count.kv_bytes(spec, 65536) == 2 * (50 * 1024 * 2 * 16 * 256 + 10 * 65536 * 2 * 4 * 512)


def test_state_bytes_by_hand() -> None:
    assert count.state_bytes(arch("meta-llama/Llama-3.1-8B")) == 0
    delta = 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    assert count.state_bytes(arch("Qwen/Qwen3-Next-80B-A3B-Instruct")) == delta
    lstm = 32 * 8 * (512 * 256 + 256 + 1) * 4
    assert count.state_bytes(arch("NX-AI/xLSTM-7b")) == lstm
    mamba = 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)
    assert count.state_bytes(arch("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")) == mamba
    assert count.state_bytes(arch("LiquidAI/LFM2.5-VL-1.6B")) == 10 * 2 * 2048 * 2


def test_flops_grow_with_what_is_seen() -> None:
    spec = arch("meta-llama/Llama-3.1-8B")
    base = count.flops_per_token(spec)
    assert base == 2 * count.params(spec).active + 32 * 2 * 32 * 256
    assert count.flops_per_token(spec, 999) - base == 999 * 32 * 2 * 32 * 256
    windowed = arch("mistralai/Mistral-7B-v0.1")
    assert count.flops_per_token(windowed, 4095) == count.flops_per_token(windowed, 100_000)


def test_towers_are_known_or_none() -> None:
    assert count.params_towers(arch("meta-llama/Llama-3.1-8B")) == 0
    assert count.params_towers(arch("google/gemma-4-31B-it")) == 31_273_086_512 - 30_697_345_280
    assert count.params_towers(arch("meta-llama/Llama-4-Maverick-17B-128E-Instruct")) is None
    assert count.params_towers(arch("google/gemma-4-E2B-it")) is None


def test_layer_count_costs_nothing() -> None:
    from onboard.facts.api import read

    big = {"model_type": "llama", "num_hidden_layers": 1000, "hidden_size": 2**17, "intermediate_size": 2**19,
           "num_attention_heads": 1024, "num_key_value_heads": 8, "vocab_size": 10**6}  # fmt: skip
    spec = read(big).arch
    assert len(spec.kinds) == 1
    assert count.params(spec).total > 10**12
