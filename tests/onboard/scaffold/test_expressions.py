"""Expressions over a config's fields: what is found holds in every example, and nothing is guessed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onboard.scaffold.expressions import Example, Search, literal, same

FIELDS = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "factor",
    "flag",
    "name",
    "layer_types",
)
KINDS = ("full_attention", "sliding_attention")


def envs() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "hidden_size": st.integers(1, 4096),
            "num_attention_heads": st.integers(1, 64),
            "num_key_value_heads": st.integers(1, 64),
            "head_dim": st.integers(1, 256),
            "factor": st.floats(0.01, 100, allow_nan=False),
            "flag": st.booleans(),
            "name": st.text(max_size=8),
            "layer_types": st.lists(st.sampled_from(KINDS), min_size=3, max_size=3).map(tuple),
        }
    )


def examples_of(found: list[dict[str, Any]]) -> list[Example]:
    return [Example(env, i, 3) for env in found for i in range(3)]


def run(text: str, example: Example) -> Any:
    """What the text evaluates to in the rendered package: ``c`` is a config object and ``i`` the layer."""
    return eval(text, {}, {"c": SimpleNamespace(**example.env), "i": example.layer})


FORMULAS = {
    "a field": lambda e, i: e["head_dim"],
    "flag": lambda e, i: e["flag"],
    "text": lambda e, i: e["name"],
    "item": lambda e, i: e["layer_types"][i],
    "product": lambda e, i: e["num_attention_heads"] * e["head_dim"],
    "quotient": lambda e, i: e["hidden_size"] // e["num_attention_heads"],
    "scale": lambda e, i: e["head_dim"] ** -0.5,
    "factor over": lambda e, i: 1.0 / e["factor"],
    "offset": lambda e, i: e["hidden_size"] + 2,
    "int": lambda e, i: int(e["hidden_size"] * e["factor"]),
}


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=15, deadline=None)
@given(st.lists(envs(), min_size=2, max_size=4))
def test_an_expression_holds_in_every_example(name, found):
    examples = examples_of(found)
    targets = [FORMULAS[name](e.env, e.layer) for e in examples]
    expression = Search(FIELDS).value(examples, targets, FIELDS)
    assert expression is not None
    for example, target in zip(examples, targets, strict=True):
        assert same(run(expression.text, example), target)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_no_field_says_is_not_bound(data):
    """Targets that disagree are never a literal; what is found still holds everywhere."""
    found = data.draw(st.lists(envs(), min_size=2, max_size=4))
    value = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-4, 4), st.text(max_size=3))
    examples = [Example(env, 0, 3) for env in found]
    targets = data.draw(st.lists(value, min_size=len(examples), max_size=len(examples)))
    expression = Search(FIELDS).value(examples, targets, data.draw(st.lists(st.sampled_from(FIELDS), max_size=3)))
    if expression is not None:
        assert all(same(run(expression.text, e), t) for e, t in zip(examples, targets, strict=True))
        if not all(same(t, targets[0]) for t in targets):
            assert expression.fields
    else:
        assert not all(same(t, targets[0]) for t in targets)


def test_two_examples_that_disagree_are_unbound():
    same_env = {"hidden_size": 8, "flag": True}
    examples = [Example(same_env, 0, 1), Example(same_env, 0, 1)]
    for targets in ((1, 2), (True, False), ("a", "b"), (None, 3), (1, True), (1, None)):
        assert Search(("hidden_size", "flag")).value(examples, targets, ()) is None


@given(st.text())
def test_text_is_always_quoted(value):
    assert eval(literal(value).text, {"__builtins__": {}}) == value


HOSTILE = ("'", '"', "\\", "{}", "{0}", "x' or c.flag or '", "\n", '"); import os #', "}", "{c.flag}")


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("listed", [True, False])
def test_text_of_a_config_is_quoted_in_conditions(value, listed):
    """The kinds of layers of a config, and the value of an option, may be any text."""
    envs = [{"kind": (value, "other")}] * 2 if listed else [{"kind": value}, {"kind": "other"}]
    examples = [Example(env, i, 2) for i, env in enumerate(envs)]
    found = dict.fromkeys(condition.text for condition, truth in Search(("kind",)).predicates(examples))
    assert any(value in text or repr(value) in text for text in found)
    for text in found:
        assert sorted([run(text, examples[0]), run(text, examples[1])]) == [False, True]


@settings(max_examples=30, deadline=None)
@given(st.lists(envs(), min_size=1, max_size=3))
def test_a_condition_means_what_it_says(found):
    examples = examples_of(found)
    for condition, truth in Search(FIELDS).predicates(examples):
        assert any(truth) and not all(truth)
        assert [bool(run(condition.text, e)) for e in examples] == list(truth)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, True, False),
        (0, False, False),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (1e-5, 1e-6, False),
        (None, 0, False),
        ("", None, False),
        ((), None, False),
        (0.0, 1e-13, False),
        ((1, 2), (1, 2), True),
        (float("nan"), float("nan"), False),
    ],
)
def test_sameness(a, b, equal):
    assert same(a, b) is equal


def test_a_value_that_never_changes_is_bound_to_its_field_where_one_decides_it():
    examples = [Example({"eps": 1e-6, "other": 1e-6}, 0, 1)] * 2
    assert Search(("eps", "other")).value(examples, [1e-6, 1e-6], ("other",)).text == "c.other"
    assert Search(("eps", "other")).value(examples, [1e-6, 1e-6], ()).text == "1e-06"
