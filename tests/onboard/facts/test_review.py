"""Faults that a review found: what the config does not say, what contradicts itself, what can't be reached."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from onboard import catalog
from onboard.arch.count import params
from onboard.diff.compare import diff
from onboard.facts import locate
from onboard.facts.api import from_catalog, load, read
from vllm_neuron.errors import ConfigError

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 320,
}  # fmt: skip


def test_A5_the_case_as_it_was_handed_in() -> None:
    facts = read({
        "model_type": "deepseek_vl_v2",
        "language_config": {
            "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 1280, "num_hidden_layers": 12,
            "num_attention_heads": 10,
        },
    })  # fmt: skip
    assert facts.section == "language_config" and len(facts.arch.layer_kinds) == 12
    assert any("language_config" in note for note in facts.notes)
    assert any("num_experts_per_tok is unspecified" in warning for warning in facts.warnings)


@pytest.mark.parametrize(
    ("model", "storage"),
    [
        ("meta-llama/Llama-3.1-8B", "separate"),
        ("microsoft/Phi-3.5-mini-instruct", "concatenated"),
        ("THUDM/glm-4-9b", "concatenated"),
        ("internlm/internlm2-chat-7b", "grouped"),
        ("EleutherAI/pythia-1b", "per head"),
        ("openai-community/gpt2", "transposed"),
    ],
)
def test_how_a_checkpoint_stores_q_k_and_v_is_a_difference(model: str, storage: str) -> None:
    found = diff(load("meta-llama/Llama-3.1-8B"), load(model))
    row = next((row for row in found.rows if row.field == "attention.storage"), None)
    if storage == "separate":
        assert row is None
    else:
        assert row is not None and row.b == storage
        assert row.missing is None


@pytest.mark.parametrize(("kv_heads", "storage"), [(1, "concatenated"), (4, "per head"), (2, "grouped")])
def test_falcon_has_three_ways(kv_heads: int, storage: str) -> None:
    config: dict[str, Any] = {
        "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "vocab_size": 320, "multi_query": kv_heads == 1,
        "new_decoder_architecture": kv_heads == 2, "num_kv_heads": kv_heads,
    }  # fmt: skip
    attention = read(config).arch.kinds[0].attention
    assert attention is not None and attention.storage == storage


def test_an_unknown_family_does_not_pass_for_a_plain_one() -> None:
    facts = read(LLAMA | {"model_type": "llama_of_another_world", "architectures": ["OtherForCausalLM"]})
    assert facts.arch.kinds[0].attention is not None and facts.arch.kinds[0].attention.storage == "unknown"


def test_contradictions_are_said_with_both_values_and_the_winner() -> None:
    warnings = read(LLAMA | {"model_type": "qwen3"}).warnings
    assert any("LlamaForCausalLM contradicts model_type=qwen3" in w and "model_type wins" in w for w in warnings)
    two = read(LLAMA | {"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]}).warnings
    assert any("LlamaForCausalLM, Qwen2ForCausalLM" in w for w in two)


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "LlamaModel"])
def test_a_class_without_a_language_model_head_is_said(name: str) -> None:
    facts = read(LLAMA | {"architectures": [name]})
    assert any(f"{name} has no language-model head" in w for w in facts.warnings)
    assert params(facts.arch) == params(read(LLAMA).arch)


def test_no_well_known_model_raises_a_false_alarm() -> None:
    words = ("contradicts model_type", "language-model head", "architectures names")
    for name in catalog.names():
        assert not [w for w in from_catalog(name).warnings if any(word in w for word in words)], name


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="no regular file"):
        load(str(tmp_path / "config.json"))


def test_a_hub_that_does_not_answer_is_asked_once_and_names_what_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append((address, timeout))
        raise OSError("no network")

    monkeypatch.setattr(locate.socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="Qwen/Qwen3-8B"):
        locate.from_hub("Qwen3-8B", None)
    assert len(asked) == 1 and asked[0][1] <= 5


def test_a_null_rope_scaling_is_told_from_an_absent_one() -> None:
    at = "attention.positions.scaling"
    assert read(LLAMA | {"rope_scaling": None}).sources[at].kind == "null"
    assert read(LLAMA).sources[at].kind == "family"


def test_E5_a_factor_that_the_reference_does_not_read_is_said() -> None:
    facts = read(LLAMA | {"partial_rotary_factor": 0.5})
    assert any("8 rotary channels of 16" in w and "turns the whole head" in w for w in facts.notes)
