"""Records of results: JSON and back, and what a verdict may say."""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_neuron.accuracy import results
from vllm_neuron.accuracy.record import decode, encode
from vllm_neuron.accuracy.results import LevelResult, Place, Report, ThreeWay, outcome_of, worst
from vllm_neuron.errors import ConfigError

VERDICTS = st.sampled_from(
    [
        results.EXPLAINED,
        results.NEAR_TIES,
        "fail: at layer 3, attn (prefill)",
        "refused: prompt ids differ at 0",
        "not run",
    ]
)


def some(kind: type, depth: int = 0) -> st.SearchStrategy:
    """Any record of a class, verdicts being real ones and nested records few."""
    hints = typing.get_type_hints(kind)
    values = {field.name: _some(hints[field.name], field.name, depth) for field in dataclasses.fields(kind)}
    values |= {"schema": st.just(results.SCHEMA)} if kind is Report else {}
    return st.builds(kind, **values)


def _some(hint: typing.Any, name: str, depth: int) -> st.SearchStrategy:
    if name == "verdict":
        return VERDICTS
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(_some(args[0], "", depth + 1), max_size=2 if depth < 2 else 1).map(tuple)
    if origin is tuple:
        return st.tuples(*(_some(each, "", depth) for each in args))
    if origin is not None and type(None) in args:
        return st.none() | _some(args[0], "", depth + 1)
    if origin is not None or hint is dict:
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
    if type(None) in args:
        return st.none() | _some(args[0], "", depth + 1)
    if dataclasses.is_dataclass(hint):
        return some(hint, depth + 1)
    return {int: st.integers(), float: st.floats(), str: st.text(max_size=8), bool: st.booleans()}[hint]


@given(some(Report))
def test_a_report_comes_back_from_json_as_it_was(report: Report) -> None:
    again = Report.from_json(json.loads(report.dumps()))
    # NaN is unlike itself; the encoded form shows it as text.
    assert encode(again) == encode(report)
    assert again == report or "nan" in report.dumps()
    assert type(again.levels) is tuple


def test_strict_reading() -> None:
    good = Report(verdict="pass", model="m", package="p", target="t", reference="r").to_json()
    with pytest.raises(ConfigError, match=r"Report\.levles.*Did you mean 'levels'"):
        Report.from_json(good | {"levles": []})
    with pytest.raises(ConfigError, match=r"Report\.schema"):
        Report.from_json(good | {"schema": 99})
    with pytest.raises(ConfigError, match=r"Report\.seconds.*a number"):
        Report.from_json(good | {"seconds": "soon"})
    with pytest.raises(ConfigError, match=r"Report\.model"):
        Report.from_json({key: value for key, value in good.items() if key != "model"})
    with pytest.raises(ConfigError, match=r"levels\[0\]\.level"):
        Report.from_json(good | {"levels": [{"verdict": "pass", "level": True}]})


def test_a_verdict_begins_with_an_outcome() -> None:
    assert outcome_of("fail: 3 tokens") == "fail"
    assert LevelResult(verdict="pass: near ties only", level=2).passed
    with pytest.raises(ConfigError, match="verdict"):
        ThreeWay(verdict="passable", name="x", shape=(), dtype="float32")
    assert worst(["pass", "fail", "not run"]) == "fail"
    assert worst(["pass", "refused", "fail"]) == "refused"
    assert worst([]) == "not run"


def test_place_in_words() -> None:
    place = Place(layer=3, block="attn", ours="layers.3.attn", theirs="model.layers.3.self_attn", phase="prefill")
    assert place.words() == "layer 3, attn (prefill)"
    assert dataclasses.replace(place, layer=None, phase=None).words() == "attn"
    assert decode(Place, encode(place)) == place
