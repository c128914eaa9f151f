"""One expression of a block that is known in several configs and layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onboard.scaffold.calls import Arg, Call, Index, Rotating, Tree, Unbound, Unifier
from onboard.scaffold.expressions import Example, Search

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass
class Made:
    """What a block's class was called with."""

    block: str
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def run(tree: Tree, example: Example) -> Any:
    """What the text makes in the rendered package."""
    classes = {b: lambda *a, b=b, **o: Made(b, a, o) for b in ("Attention", "MLP", "MoE", "QKNorm", "Clamp")}
    names = {"c": SimpleNamespace(**example.env), "i": example.layer, "rotary": "rotary"}
    return eval(tree.text, {}, {**classes, **names})


def wanted(value: Any, example: Example) -> Any:
    """The same from the value itself."""
    if isinstance(value, Index):
        return example.layer
    if isinstance(value, Rotating):
        return "rotary"
    if not isinstance(value, Call):
        return value
    positional = tuple(wanted(a.value, example) for a in value.args if not a.name)
    return Made(value.block, positional, {a.name: wanted(a.value, example) for a in value.args if a.name})


def check(envs: Sequence[dict[str, Any]], layers: int, make: Callable[[dict[str, Any], int], Any]) -> Tree:
    """Unify ``make``'s values over the layers of configs, and hold the text against them."""
    examples = [Example(env, i, layers) for env in envs for i in range(layers)]
    values = [make(e.env, e.layer) for e in examples]
    tree = Unifier(Search(tuple(envs[0])), {"window": ("sliding_window",)}).unify(examples, values, "block")
    for example, value in zip(examples, values, strict=True):
        made, right = run(tree, example), wanted(value, example)
        if isinstance(value, Call):
            assert made == right or _without_defaults(made, value) == _without_defaults(right, value)
        else:
            assert made == right
    return tree


def _without_defaults(made: Made, call: Call) -> Made:
    defaults = {a.name: a.default for a in call.args}
    return Made(made.block, made.args, {k: v for k, v in made.options.items() if v != defaults.get(k)})


def windowed(window: int | None) -> Call:
    return Call("Attention", (Arg("", Index()), Arg("window", window, "window", None)))


def test_layer_types():
    envs = [
        {"sliding_window": 8, "layer_types": (SLIDING, FULL, SLIDING)},
        {"sliding_window": 128, "layer_types": (FULL, FULL, SLIDING)},
    ]
    tree = check(envs, 3, lambda e, i: windowed(e["sliding_window"] if e["layer_types"][i] == SLIDING else None))
    assert tree.text in (
        "Attention(i, window=c.sliding_window if c.layer_types[i] == 'sliding_attention' else None)",
        "Attention(i, window=None if c.layer_types[i] == 'full_attention' else c.sliding_window)",
    )
    assert set(tree.fields) == {"sliding_window", "layer_types"}


SPARSE = Call("MoE", (Arg("experts", 8, ""),))
DENSE = Call("MLP", (Arg("", 96, "size"),))
PATTERNS: dict[str, tuple[list[dict[str, Any]], Callable[[dict[str, Any], int], bool]]] = {
    "first_k_dense_replace": (
        [{"first_k_dense_replace": 1, "size": 96}, {"first_k_dense_replace": 3, "size": 96}],
        lambda e, i: i >= e["first_k_dense_replace"],
    ),
    "period": (
        [{"decoder_sparse_step": 2, "size": 96}, {"decoder_sparse_step": 3, "size": 96}],
        lambda e, i: (i + 1) % e["decoder_sparse_step"] == 0,
    ),
    "period from the first layer": (
        [{"period": 2, "size": 96}, {"period": 3, "size": 96}],
        lambda e, i: i % e["period"] == 0,
    ),
    "period and offset": (
        [
            {"expert_layer_period": 2, "expert_layer_offset": 1, "size": 96},
            {"expert_layer_period": 3, "expert_layer_offset": 2, "size": 96},
        ],
        lambda e, i: i % e["expert_layer_period"] == e["expert_layer_offset"],
    ),
    "a list of layers": (
        [{"mlp_only_layers": (0, 2), "size": 96}, {"mlp_only_layers": (4,), "size": 96}],
        lambda e, i: i not in e["mlp_only_layers"],
    ),
    "a list and a period": (
        [
            {"mlp_only_layers": (1,), "decoder_sparse_step": 2, "size": 96},
            {"mlp_only_layers": (2,), "decoder_sparse_step": 3, "size": 96},
        ],
        lambda e, i: i not in e["mlp_only_layers"] and (i + 1) % e["decoder_sparse_step"] == 0,
    ),
    "a list of ones": (
        [{"moe_layers": (1, 0, 1, 1, 0, 1), "size": 96}, {"moe_layers": (0, 0, 1, 0, 1, 1), "size": 96}],
        lambda e, i: bool(e["moe_layers"][i]),
    ),
    "a list of kinds": (
        [
            {"mlp_layer_types": ("dense", "sparse", "dense") * 2, "size": 96},
            {"mlp_layer_types": ("sparse", "dense", "dense") * 2, "size": 96},
        ],
        lambda e, i: e["mlp_layer_types"][i] == "sparse",
    ),
    "a switch": (
        [{"use_moe": True, "size": 96}, {"use_moe": False, "size": 96}],
        lambda e, i: e["use_moe"],
    ),
    "a switch and a threshold": (
        [{"use_moe": True, "first": 2, "size": 96}, {"use_moe": False, "first": 2, "size": 96}],
        lambda e, i: e["use_moe"] and i >= e["first"],
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_which_layers_are_sparse(name):
    envs, sparse = PATTERNS[name]
    tree = check(envs, 6, lambda e, i: SPARSE if sparse(e, i) else DENSE)
    assert set(tree.blocks) == {"MoE", "MLP"}


def test_layers_without_the_block_have_none():
    envs = [{"kinds": ("a", "b", "a")}, {"kinds": ("b", "b", "a")}]
    tree = check(envs, 3, lambda e, i: DENSE if e["kinds"][i] == "a" else None)
    assert " else None" in tree.text or "None if " in tree.text


def test_three_kinds_of_layers_nest():
    envs = [{"kinds": ("a", "b", "c", "a"), "size": 96}, {"kinds": ("c", "b", "a", "a"), "size": 96}]
    blocks = {"a": DENSE, "b": SPARSE, "c": None}
    check(envs, 4, lambda e, i: blocks[e["kinds"][i]])


@pytest.mark.parametrize("flipped", [True, False])
def test_a_condition_inside_a_condition_is_grouped(flipped):
    """Either side may be the one that needs a further condition."""
    envs = [{"on": True, "kinds": ("a", "b")}, {"on": False, "kinds": ("a", "b")}, {"on": False, "kinds": ("b", "b")}]
    blocks = {"a": DENSE, "b": None}
    check(envs, 2, lambda e, i: SPARSE if e["on"] is flipped else blocks[e["kinds"][i]])
    kinds = {True: {"a": SPARSE, "b": DENSE}, False: {"a": None, "b": DENSE}}
    check(envs, 2, lambda e, i: kinds[e["on"] is flipped][e["kinds"][i]])


def test_a_condition_that_no_field_says_is_unbound():
    envs = [{"hidden_size": 64, "layer_types": (FULL, FULL, FULL, FULL)}] * 2
    with pytest.raises(Unbound):
        check(envs, 4, lambda e, i: SPARSE if i in (0, 3) else DENSE)
    with pytest.raises(Unbound):
        check(envs, 4, lambda e, i: windowed(8 if i == 2 else None))


def test_values_that_disagree_in_the_same_config_are_unbound():
    examples = [Example({"eps": 1e-6}, 0, 1), Example({"eps": 1e-6}, 0, 1)]
    with pytest.raises(Unbound) as error:
        Unifier(Search(("eps",)), {}).unify(examples, [1e-6, 1e-5], "norms.eps")
    assert (error.value.path, error.value.values) == ("norms.eps", (1e-6, 1e-5))


def test_what_belongs_to_the_whole_model_reads_no_layer():
    examples = [Example({"kinds": ("a", "b")}, 0, 2), Example({"kinds": ("b", "b")}, 0, 2)]
    with pytest.raises(Unbound):
        Unifier(Search(("kinds",)), {}, layered=False).unify(examples, ["a", "b"], "head")


def test_an_argument_is_left_out_where_it_is_the_default_everywhere():
    envs = [{"sliding_window": None}, {"sliding_window": None}]
    assert check(envs, 2, lambda e, i: windowed(e["sliding_window"])).text == "Attention(i)"


def test_an_argument_that_only_some_blocks_have_is_unbound():
    examples = [Example({"size": 1}, 0, 1), Example({"size": 1}, 0, 1)]
    with pytest.raises(Unbound):
        Unifier(Search(("size",)), {}).unify(examples, [Call("MLP"), DENSE], "mlp")


def test_rotary_settings_by_kind_and_none():
    envs = [{"layer_types": (SLIDING, FULL)}, {"layer_types": (FULL, SLIDING)}]
    examples = [Example(env, i, 2) for env in envs for i in range(2)]
    unifier = Unifier(Search(("layer_types",)), {})
    keyed = unifier.unify(examples, [Rotating(e.env["layer_types"][e.layer]) for e in examples], "positions")
    assert keyed.text == "rotary[c.layer_types[i]]"
    some = [Rotating() if e.env["layer_types"][e.layer] == SLIDING else None for e in examples]
    assert unifier.unify(examples, some, "positions").text in (
        "rotary if c.layer_types[i] == 'sliding_attention' else None",
        "None if c.layer_types[i] == 'full_attention' else rotary",
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_what_is_unified_is_right_in_every_layer(data):
    """Random blocks: an expression is right everywhere, or there is none."""
    kinds = st.lists(st.sampled_from("ab"), min_size=4, max_size=4).map(tuple)
    config = {"kinds": kinds, "first": st.integers(0, 4), "size": st.integers(2, 9), "on": st.booleans()}
    envs = data.draw(st.lists(st.fixed_dictionaries(config), min_size=2, max_size=3))
    sizes = st.sampled_from((None, 3, 5))
    block = st.builds(lambda name, size: Call(name, (Arg("", size, "size"),)), st.sampled_from(("MLP", "MoE")), sizes)
    table = {(k, i): data.draw(st.one_of(st.none(), block)) for k in range(len(envs)) for i in range(4)}
    index = {id(env): k for k, env in enumerate(envs)}
    try:
        check(envs, 4, lambda e, i: table[index[id(e)], i])
    except Unbound:
        assert len({repr(v) for v in table.values()}) > 1
