"""A dozen families of different shapes through detection, rendering and proof; the whole zoo is `make zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from onboard.zoo.one import run

PROVED = (
    "bloom",  # ALiBi, fused projections by head, residuals inside the blocks
    "cohere2",  # parallel blocks, layers without positions, windows
    "deepseek_v3",  # latent attention, groups of experts, correction bias
    "dbrx",  # nested config, clipped queries, flat stacks of experts
    "gemma4_text",  # two head sizes, shared caches, embeddings of each layer
    "gpt2",  # learned positions, matrices stored transposed
    "gpt_oss",  # sinks, limits, interleaved experts with biases
    "laguna",  # head counts that differ by layer, gates
    "nemotron",  # LayerNorm as 1 + w, plain MLP, partial rotary
    "olmo2",  # norms after the blocks, norms over all heads
    "phi3",  # longrope, fused storage
    "qwen2_moe",  # shared expert with a gate
)
OPEN = {"diffllama": "differential attention", "mamba2": "mamba2", "modernbert-decoder": "head MLP"}


@pytest.mark.parametrize("model_type", PROVED)
def test_proved_with_no_hand_edit(model_type: str, tmp_path: Path) -> None:
    row = run(model_type, tmp_path / "package")
    assert row["verdict"] == "proved", row["message"]
    assert 0 < row["worst"] <= 1e-5
    assert row["open"] == []


@pytest.mark.parametrize("model_type", OPEN)
def test_open_with_its_features_named(model_type: str, tmp_path: Path) -> None:
    row = run(model_type, tmp_path / "package")
    assert row["verdict"] == "open", row["message"]
    assert OPEN[model_type] in row["open"]
