"""What the summary counts: one thing to write once, one covered fact once."""

from __future__ import annotations

import dataclasses

import pytest

from onboard import catalog
from onboard.diff import diff
from onboard.diff.grouping import group
from onboard.diff.rows import Row
from onboard.facts.api import load

LLAMA = "meta-llama/Llama-3.1-8B"
PLACES = {"layer.parallel": "norms.places", "layer.shared_norm": "norms.places"}
FOLLOWERS = {
    "openai/gpt-oss-20b": {},
    "EleutherAI/pythia-1b": {"layer.parallel": "norms.places"},
    "openai-community/gpt2": {},
    "deepseek-ai/DeepSeek-V3": {},
    "CohereLabs/c4ai-command-r7b-12-2024": PLACES,
    "google/gemma-4-E2B-it": {
        "attention.width": "layers.head_size_k",
        "layer.per_layer_input": "per_layer_input",
    },
    "google/gemma-4-31B-it": {"attention.width": "layers.head_size_k"},
}
TO_WRITE: dict[str, set[str]] = {
    "openai/gpt-oss-20b": {"quantization"},
    "EleutherAI/pythia-1b": set(),
    "openai-community/gpt2": set(),
    "deepseek-ai/DeepSeek-V3": {"quantization"},
    "CohereLabs/c4ai-command-r7b-12-2024": set(),
    "google/gemma-4-E2B-it": {"towers"},
    "google/gemma-4-31B-it": {"towers"},
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_parts_of_another_row_are_shown_and_not_counted(name: str) -> None:
    found = diff(load(LLAMA), load(name))
    assert {row.field: row.goes_with for row in found.rows if row.goes_with} == FOLLOWERS[name]
    assert {row.field for row in found.counted if row.missing} == TO_WRITE[name]
    summary = found.summary()
    assert summary["to_write"] == len(TO_WRITE[name])
    assert summary["differences"] == len(found.of_kind("semantic")) - len(FOLLOWERS[name])
    assert summary["covered"] + summary["to_write"] == summary["differences"] == sum(summary["by_item"].values())


@pytest.mark.parametrize("base", [LLAMA, "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3", "google/gemma-2-9b"])
def test_every_row_goes_with_a_counted_one_and_no_work_is_lost(base: str) -> None:
    for name in catalog.names():
        for target in ("a", "b"):
            found = diff(load(base), load(name), target=target)
            rows = {row.field: row for row in found.of_kind("semantic")}
            assert (found.summary()["to_write"] > 0) == any(row.missing for row in rows.values())
            for row in rows.values():
                if row.goes_with is not None:
                    leader = rows[row.goes_with]
                    assert leader.counts and (row.missing is None or leader.missing is not None), (name, row)


def test_a_detail_counts_when_both_models_have_the_block() -> None:
    found = diff(load("mistralai/Mixtral-8x7B-v0.1"), load("openai/gpt-oss-20b"))
    rows = {row.field: row for row in found.rows}
    assert "moe" not in rows and rows["mlp.bias"].covered_by == "MoE(bias=True)"
    assert all(rows[field].counts and rows[field].covered_by for field in ("mlp.bias", "moe.clamp", "moe.router.bias"))


def test_work_never_hides_behind_a_covered_row() -> None:
    places = Row("normalisation", "norms.places", "semantic", "pre", "parallel", covered_by="wiring: x")
    part = Row("special features", "layer.parallel", "semantic", False, True, covered_by="wiring: x")
    assert [row.goes_with for row in group([places, part])] == [None, "norms.places"]
    to_write = dataclasses.replace(part, covered_by=None, missing="x")
    assert [row.goes_with for row in group([places, to_write])] == [None, None]
