"""ArchSpec to JSON and back, and what is refused on the way back."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest

from onboard import catalog
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.api import load
from vllm_neuron.errors import ConfigError


@pytest.mark.parametrize("name", catalog.names())
def test_round_trip(name: str) -> None:
    arch = load(name).arch
    text = json.dumps(arch.to_json(), allow_nan=False)
    assert ArchSpec.from_json(json.loads(text)) == arch


def llama() -> dict[str, Any]:
    return copy.deepcopy(load("meta-llama/Llama-3.1-8B").arch.to_json())


def test_beyond_round_trip() -> None:
    odd = (Beyond("altup", "Gemma3nTextAltUp"), Beyond("prefix LM", "HrmTextModel", "the mask"))
    arch = dataclasses.replace(load("meta-llama/Llama-3.1-8B").arch, beyond=odd)
    value = arch.to_json()
    assert value["beyond"][0] == {"feature": "altup", "hf_class": "Gemma3nTextAltUp"}
    assert ArchSpec.from_json(json.loads(json.dumps(value))) == arch


def test_json_is_compact() -> None:
    assert llama()["layer_kinds"] == [[32, 0]]
    assert "sinks" not in llama()["kinds"][0]["attention"]


def test_unknown_key_names_the_nearest() -> None:
    value = llama()
    value["kinds"][0]["attention"]["head"] = 3
    with pytest.raises(ConfigError, match=r"kinds\[0\]\.attention\.head.*Did you mean 'heads'"):
        ArchSpec.from_json(value)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("hidden",), "4096"),
        (("hidden",), True),
        (("hidden",), None),
        (("kinds",), {}),
        (("kinds", 0, "attention"), []),
        (("kinds", 0, "norms", "pre_mixer", "eps"), float("nan")),
        (("layer_kinds",), [[1, 7]]),
        (("layer_kinds",), [[0, 0]]),
        (("layer_kinds",), [[10**12, 0]]),
        (("layer_kinds",), [0, 0]),
        (("head", "tied"), 1),
    ],
)
def test_wrong_values_are_refused(path: tuple[Any, ...], wrong: Any) -> None:
    value: Any = llama()
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    with pytest.raises(ConfigError):
        ArchSpec.from_json(value)


def test_missing_key_is_named() -> None:
    value = llama()
    del value["embedding"]["vocab"]
    with pytest.raises(ConfigError, match=r"arch\.embedding\.vocab"):
        ArchSpec.from_json(value)


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_not_an_object(value: Any) -> None:
    with pytest.raises(ConfigError):
        ArchSpec.from_json(value)


def test_layers_by_index() -> None:
    arch = load("google/gemma-4-31B-it").arch
    assert arch.layers == 60
    kinds = [layer.mixer_kind for layer in arch]
    assert kinds == (["sliding"] * 5 + ["full"]) * 10
    assert [arch.count_of(i) for i in range(2)] == [50, 10]
    assert arch.layer(5).norm_places == "sandwich"
