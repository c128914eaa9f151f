"""Module trees from transformers: what they hold, and that no failure is fatal."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from onboard.arch import count
from onboard.diff import diff, structure
from onboard.facts.api import load, read

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}  # fmt: skip


def test_two_trees_at_once_and_a_refused_model_next_to_a_sound_one() -> None:
    good = read(TINY, name="tiny")
    bad = dataclasses.replace(good, name="bad", raw={"model_type": "no_such_type"}, architectures=("NoSuchModel",))
    tree, refused = structure.trees((good, bad))
    assert tree["class"] == "LlamaForCausalLM" and tree["params"] == count.params(good.arch).total
    assert tree["params_towers"] == 0
    assert "    layers: ModuleList" in tree["modules"] and "      0..2: LlamaDecoderLayer" in tree["modules"]
    assert set(refused) == {"error"} and "no_such_type" in refused["error"]
    assert diff(good, bad, structures=(tree, refused)).a.structure == tree


def test_a_process_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    good = read(TINY, name="tiny")
    (told,) = structure.trees((good,), timeout=0.01)
    assert "longer than 0.01 s" in told["error"]


def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    (told,) = structure.trees((load("meta-llama/Llama-3.1-8B"),))
    assert "could be started" in told["error"]


@pytest.mark.parametrize("out", ["", "not json", "[1]"])
def test_an_answer_that_is_none(out: str) -> None:
    assert "error" in structure.checked(out)
