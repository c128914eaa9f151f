"""Wrong facts, planted: the renderer finds them by numbers and says so, or names what differs; it is never silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from onboard.arch.blocks import Attention, Layer
from onboard.arch.spec import ArchSpec
from onboard.facts import api
from onboard.facts.api import ModelFacts
from onboard.probe.tiny import variants
from onboard.scaffold import render, study
from onboard.scaffold.code import ModelCode
from onboard.scaffold.numbers import each_layer, hypotheses

Change = Callable[[ArchSpec], ArchSpec]
MODELS = {
    "llama": "meta-llama/Llama-3.2-1B",
    "qwen3": "Qwen/Qwen3-0.6B",
    "gemma2": "google/gemma-2-2b",
    "mixtral": "mistralai/Mixtral-8x22B-v0.1",
    "granite": "ibm-granite/granite-3.3-8b-instruct",
}


@cache
def facts_of(model: str) -> ModelFacts:
    return api.load(MODELS[model])


@pytest.fixture(autouse=True)
def plain_twin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tiny twin is enough here, and quick."""
    monkeypatch.setattr(render, "variants", lambda model_type, given: variants(model_type, given)[:1])


@cache
def right_code(model: str) -> ModelCode:
    return render.model_code(facts_of(model))


def planted(monkeypatch: pytest.MonkeyPatch, model: str, change: Change) -> ModelCode:
    """What is rendered when the facts say something else of the model and of its twin."""

    def read(raw: dict[str, Any], **options: Any) -> ModelFacts:
        found = api.read(raw, **options)
        return replace(found, arch=change(found.arch))

    monkeypatch.setattr(study, "read", read)
    facts = facts_of(model)
    return render.model_code(replace(facts, arch=change(facts.arch)))


def layers(**values: Any) -> Change:
    return lambda spec: each_layer(spec, lambda one: replace(one, **values))


def attention(change: Callable[[Attention], Attention]) -> Change:
    def layer(one: Layer) -> Layer:
        return one if one.attention is None else replace(one, attention=change(one.attention))

    return lambda spec: each_layer(spec, layer)


def positions(**values: Any) -> Change:
    return attention(lambda a: replace(a, positions=replace(a.positions, **values)))


def norms(**values: Any) -> Change:
    def layer(one: Layer) -> Layer:
        changed = {k: replace(v, **values) for k, v in vars(one.norms).items() if v is not None}
        return replace(one, norms=replace(one.norms, **changed))

    return lambda spec: replace(each_layer(spec, layer), final_norm=replace(spec.final_norm, **values))


FOUND: dict[str, tuple[str, Change, str]] = {
    "interleaved rotary": ("llama", positions(interleaved=True), "attention.positions.interleaved is False"),
    "activation": (
        "llama",
        lambda spec: each_layer(spec, lambda one: replace(one, mlp=replace(one.mlp, activation="gelu"))),
        "mlp.activation is silu",
    ),
    "plus one": ("llama", norms(plus_one=True), "norms.plus_one is False"),
    "eps": ("llama", norms(eps=1e-3), "norms.eps is 1e-05"),
    "scale": ("llama", attention(lambda a: replace(a, scale=0.3)), "attention.scale is 1 / sqrt(head size)"),
    "soft cap of the head": (
        "llama",
        lambda spec: replace(spec, head=replace(spec.head, softcap=3.0)),
        "head.softcap is None",
    ),
    "residual": ("llama", layers(residual_scale=0.5), "residual_scale is 1.0"),
    "qk-norm after the rotary": (
        "qwen3",
        attention(lambda a: replace(a, qk_norm=replace(a.qk_norm, place="after_rope"))),
        "attention.qk_norm.place is before_rope",
    ),
    "embedding multiplier": (
        "gemma2",
        lambda spec: replace(spec, embedding=replace(spec.embedding, multiplier=1.0)),
        "embedding.multiplier is sqrt(hidden)",
    ),
    "router": (
        "mixtral",
        lambda spec: each_layer(
            spec, lambda one: replace(one, moe=replace(one.moe, router=replace(one.moe.router, normalize=False)))
        ),
        "moe.router.normalize is True",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_wrong_fact_is_found_by_numbers(name, monkeypatch):
    model, change, words = FOUND[name]
    right = right_code(model)
    assert right.open == () and not [row for row in right.detected if row[0] == "found by numbers"]
    code = planted(monkeypatch, model, change)
    assert ("found by numbers", words) in code.detected
    assert code.open == ()
    assert (code.config_py, code.model_py) == (right.config_py, right.model_py)


NAMED: dict[str, tuple[str, Change, str]] = {
    "soft cap of the head is missing": (
        "gemma2",
        lambda spec: replace(spec, head=replace(spec.head, softcap=None)),
        "final_logit_softcapping is not read",
    ),
    "soft cap of the scores is missing": (
        "gemma2",
        attention(lambda a: replace(a, softcap=None)),
        "attn_logit_softcapping is not read",
    ),
    "the scale is another": (
        "granite",
        attention(lambda a: replace(a, scale=a.head_size_k**-0.5)),
        "attention_multiplier is not read",
    ),
    "the residual's scale is missing": ("granite", layers(residual_scale=1.0), "residual_multiplier is not read"),
    "a bias that is not there": ("llama", attention(lambda a: replace(a, o_bias=True)), ""),
    "a norm that is not read": ("qwen3", attention(lambda a: replace(a, qk_norm=None)), ""),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_wrong_fact_that_no_option_explains_is_open(name, monkeypatch):
    model, change, feature = NAMED[name]
    code = planted(monkeypatch, model, change)
    assert any(o.feature.startswith(feature) for o in code.open)
    assert "raise NotImplementedError(" in code.model_py
    assert not [row for row in code.detected if row[0] == "found by numbers"]


def test_only_other_values_are_tried():
    spec = facts_of("llama").arch
    blocks = ("layers.*.attn", "layers.*.mlp", "layers.*.attn_norm", "embed", "head", "layers.*")
    found = list(hypotheses(blocks, spec))
    assert found and all(h.change(spec) != spec for h in found)
    assert not [h for h in found if h.words in ("mlp.activation is silu", "embedding.multiplier is 1")]
    assert list(hypotheses((), spec)) == []
