"""The bundled entries: strict schema, names, and that reading one is light."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from onboard import catalog
from onboard.facts.api import load
from vllm_neuron.errors import ConfigError


def test_size() -> None:
    assert len(catalog.names()) >= 90


@pytest.mark.parametrize("name", catalog.names())
def test_entry_fits_the_schema(name: str) -> None:
    entry = catalog.entry(name)
    assert entry.name == name
    assert "/" in name
    assert entry.fields
    facts = load(name)
    assert facts.origin == "catalog"
    assert facts.name == name
    assert not facts.unknown_keys, "a field that nothing reads has no place in an entry"
    assert facts.confidence in catalog.CONFIDENCE
    if entry.confidence in ("verbatim", "dump"):
        assert entry.missing == ()
    for key in entry.missing:
        assert key not in entry.fields
    assert not any(w for w in facts.warnings if "contradict" in w)


def test_missing_values_are_said() -> None:
    facts = load("CohereForAI/c4ai-command-r-v01")
    assert facts.confidence == "trimmed"
    assert "rope_theta" in facts.missing
    assert facts.sources["attention.positions.base"].kind == "family"
    assert any("rope_theta" in w for w in facts.warnings)


def test_names_are_found_whatever_their_case() -> None:
    assert catalog.find("META-LLAMA/llama-3.1-8b") == "meta-llama/Llama-3.1-8B"
    assert load("qwen/qwen3-8b").name == "Qwen/Qwen3-8B"
    assert catalog.find("meta-llama/Llama-9") is None


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("meta-lama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("gemma-4-31B", "google/gemma-4-31B-it"),
    ],
)
def test_near_names_are_suggested(typo: str, meant: str) -> None:
    assert meant in catalog.suggest(typo)
    with pytest.raises(ConfigError) as caught:
        load(typo)
    assert meant in caught.value.action


def test_repeating_lists_come_back() -> None:
    for value in ([1] * 40, ["a", "b"] * 20, [0, 1, 1] * 5 + [0], list(range(20)), ["x"] * 3 + ["y"] * 30, [1, 2]):
        assert catalog.expand(json.loads(json.dumps(catalog.compact(value)))) == value
    assert catalog.compact([1] * 40) == {"repeat": [1], "length": 40}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"extra": 1}, "extra"),
        ({"confidence": "sure"}, "confidence"),
        ({"fields": []}, "fields"),
        ({"schema": 2}, "schema|confidence"),
        ({"remote_code": "no"}, "remote_code"),
    ],
)
def test_schema_is_strict(change: dict[str, Any], match: str) -> None:
    raw = json.loads((catalog.DATA / "openai-community--gpt2.json").read_text())
    catalog.parse(copy.deepcopy(raw), "gpt2")
    with pytest.raises(ConfigError, match=match):
        catalog.parse({**raw, **change}, "gpt2")


def test_missing_key_of_the_schema() -> None:
    raw = json.loads((catalog.DATA / "openai-community--gpt2.json").read_text())
    del raw["note"]
    with pytest.raises(ConfigError, match="note"):
        catalog.parse(raw, "gpt2")


def test_loading_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from onboard.facts.api import load\n"
        "load('meta-llama/Llama-3.1-8B'), load('google/gemma-4-31B-it')\n"
        "heavy = ('torch', 'transformers', 'vllm', 'pydantic', 'huggingface_hub', 'httpx')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
    took = []
    for name in ("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "google/gemma-4-31B-it", "openai/gpt-oss-20b"):
        start = time.perf_counter()
        load(name)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.05
