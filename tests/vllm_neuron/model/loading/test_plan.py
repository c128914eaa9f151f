"""Tables and plans: which key fills which parameter, and one grouped message for everything that is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.model.loading import Drop, Fuse, Map, Plan, Split, StackExperts, Table, Tie
from vllm_neuron.model.loading.leftovers import check
from vllm_neuron.model.loading.plan import make_plan
from vllm_neuron.model.loading.table import expand, fill, match

TABLE = Table(
    Map("embed", "model.embed_tokens"),
    Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
    Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
    Map("norm", "model.norm"),
    Map("head", "lm_head"),
    Tie("head", "embed", when="tie"),
)
LAYERS = 28


def parameters(*more: str, head: bool = True) -> list[str]:
    inner = [f"layers.{i}.attn.{m}.weight" for i in range(LAYERS) for m in ("qkv", "o")]
    return ["embed.weight", *inner, "norm.weight", *(["head.weight"] if head else []), *more]


def keys(prefix: str = "model.", head: str = "lm_head.weight") -> list[str]:
    inner = [f"{prefix}layers.{i}.self_attn.{p}_proj.weight" for i in range(LAYERS) for p in "qkvo"]
    return [f"{prefix}embed_tokens.weight", *inner, f"{prefix}norm.weight", head]


def plan(table: Table, names: Iterable[str], found: Iterable[str], tie: bool = False) -> Plan:
    return make_plan(table, list(names), list(found), {"tie": tie})


def refused(table: Table, names: Iterable[str], found: Iterable[str], tie: bool = False) -> str:
    with pytest.raises(CheckpointError) as caught:
        check(plan(table, names, found, tie), {"tie": tie}, table)
    return str(caught.value)


def test_names() -> None:
    assert expand("a.{q,k, v}_proj.{w,b}") == tuple(f"a.{p}_proj.{x}" for p in "qkv" for x in "wb")
    assert match("a.{i}.b", "a.12.b") == {"i": "12"}
    assert match("a.{i}.b", "a.12.bc") is None and match("a.{i}.b", "axb.1.b") is None
    assert match("{i}.{i}", "3.3") == {"i": "3"} and match("{i}.{i}", "3.4") is None
    assert fill("x.{i}.{e}", {"i": "3"}) == "x.3.{e}"


def test_every_parameter_and_every_key_is_accounted_for() -> None:
    found = plan(TABLE, parameters(), keys())
    assert found.complete and found.remapped is None and found.dropped == {} and found.redundant == {}
    assert found.sources.keys() == set(parameters())
    qkv = [f"model.layers.3.self_attn.{p}_proj.weight" for p in "qkv"]
    assert list(found.sources["layers.3.attn.qkv.weight"].keys) == qkv
    assert [key for source in found.sources.values() for key in source.keys] == sorted(keys(), key=keys().index)


def test_a_row_serves_whichever_parameters_exist() -> None:
    biases = [f"model.layers.{i}.self_attn.{p}_proj.bias" for i in range(LAYERS) for p in "qkv"]
    found = plan(TABLE, parameters(*(f"layers.{i}.attn.qkv.bias" for i in range(LAYERS))), keys() + biases)
    assert found.complete and list(found.sources["layers.5.attn.qkv.bias"].keys) == biases[15:18]


def test_a_parameter_without_a_module_of_its_own() -> None:
    table = Table(Map("layers.{i}.sinks", "m.{i}.sinks"), Map("layers.{i}.attn", "m.{i}.attn"))
    found = plan(table, ["layers.0.sinks", "layers.0.attn.scale"], ["m.0.sinks", "m.0.attn.scale"])
    assert found.complete and found.sources["layers.0.sinks"].keys == ("m.0.sinks",)


def test_map_with_alternatives_pairs_them_in_order() -> None:
    table = Table(Map("{i}.{q,k}_norm", "m.{i}.attn.{query,key}_norm"))
    found = plan(table, ["2.q_norm.weight", "2.k_norm.weight"], [f"m.2.attn.{n}_norm.weight" for n in ("key", "query")])
    assert found.complete and found.sources["2.k_norm.weight"].keys == ("m.2.attn.key_norm.weight",)


def test_split_gives_parts_of_one_key_in_order() -> None:
    found = plan(
        Table(Split("mlp.{gate,up}", "m.gate_up", dim=1)), ["mlp.gate.weight", "mlp.up.weight"], ["m.gate_up.weight"]
    )
    parts = [(s.keys, s.part, s.parts, s.dim) for s in found.sources.values()]
    assert found.complete and parts == [(("m.gate_up.weight",), 0, 2, 1), (("m.gate_up.weight",), 1, 2, 1)]


STACK = Table(
    StackExperts("{i}.moe.gate_up", "m.{i}.experts.{e}.{gate,up}.weight"),
    Map("{i}.moe.gate_up", "m.{i}.experts.gate_up"),
)


def test_experts_are_counted_in_the_checkpoint_and_interleaved() -> None:
    found = [f"m.7.experts.{e}.{p}.weight" for p in ("gate", "up") for e in range(12)]
    source = plan(STACK, ["7.moe.gate_up"], found).sources["7.moe.gate_up"]
    assert list(source.keys) == [f"m.7.experts.{e}.{p}.weight" for e in range(12) for p in ("gate", "up")]


def test_D9_either_form_of_experts_fills_the_same_parameter() -> None:
    found = plan(STACK, ["7.moe.gate_up"], ["m.7.experts.gate_up"])
    assert found.complete and found.sources["7.moe.gate_up"].keys == ("m.7.experts.gate_up",)


def test_D9_a_missing_expert_is_named() -> None:
    found = [f"m.7.experts.{e}.{p}.weight" for e in range(12) for p in ("gate", "up")]
    found.remove("m.7.experts.4.up.weight")
    message = refused(Table(STACK.rows[0]), ["7.moe.gate_up"], found)
    assert "7.moe.gate_up needs m.7.experts.4.up.weight" in message


@pytest.mark.parametrize("own", [True, False])
def test_C1_tied_head_that_is_in_the_file_too(own: bool) -> None:
    found = plan(TABLE, parameters(head=own), keys(), tie=True)
    assert found.complete and found.redundant == {"lm_head.weight": "model.embed_tokens.weight"}
    if own:
        assert found.sources["head.weight"].keys == ("model.embed_tokens.weight",)


@pytest.mark.parametrize("own", [True, False])
def test_C1_tied_head_that_is_not_in_the_file(own: bool) -> None:
    assert plan(TABLE, parameters(head=own), keys()[:-1], tie=True).complete


def test_C3_head_absent_and_not_tied() -> None:
    message = refused(TABLE, parameters(), keys()[:-1])
    assert "has no lm_head.weight: set tie to true if head shares embed" in message
    assert "1 parameters without keys" in message


def test_C11_biases_only_in_the_file_are_named_in_groups() -> None:
    biases = [f"model.layers.{i}.self_attn.{p}_proj.bias" for i in range(LAYERS) for p in "qkv"]
    message = refused(TABLE, parameters(), keys() + biases)
    assert "bias=True" in message and f"{len(biases)} keys without parameters" in message
    for p in "qkv":
        assert f"  model.layers.*.self_attn.{p}_proj.bias ({LAYERS} names)" in message.splitlines()


def test_C11_biases_only_in_the_model() -> None:
    message = refused(TABLE, parameters("layers.0.attn.o.bias"), keys())
    assert "layers.0.attn.o.bias needs model.layers.0.self_attn.o_proj.bias" in message


@pytest.mark.parametrize(
    ("prefix", "head", "remapped"),
    [
        ("language_model.model.", "language_model.lm_head.weight", ("language_model.", "")),
        ("model.language_model.", "lm_head.weight", ("model.language_model.", "model.")),
        ("model.model.", "lm_head.weight", ("model.model.", "model.")),
        ("model.model.", "model.lm_head.weight", ("model.", "")),
        ("base_model.model.model.", "base_model.model.lm_head.weight", ("base_model.model.", "")),
        ("", "lm_head.weight", ("", "model.")),
    ],
)
def test_C13_known_prefixes_are_mapped(prefix: str, head: str, remapped: tuple[str, str]) -> None:
    found = plan(TABLE, parameters(), keys(prefix, head))
    assert found.complete and found.remapped == remapped
    assert found.sources["norm.weight"].keys == (f"{prefix}norm.weight",)
    assert found.sources["head.weight"].keys == (head,)


def test_C13_an_unknown_prefix_is_one_line() -> None:
    message = refused(TABLE, parameters(), keys("actor.model.", "actor.lm_head.weight"))
    assert f"All {len(keys())} names differ by their prefix: 'actor.' in the file, '' in the table" in message
    assert len(message.splitlines()) < 20


def test_C13_a_prefix_that_the_file_lacks_is_one_line() -> None:
    table = Table(Map("{i}.a", "net.model.layers.{i}.a"))
    message = refused(table, [f"{i}.a.weight" for i in range(9)], [f"layers.{i}.a.weight" for i in range(9)])
    assert "All 9 names differ by their prefix: '' in the file, 'net.model.' in the table" in message
    renamed = refused(table, [f"{i}.a.weight" for i in range(9)], [f"net.trunk.layers.{i}.a.weight" for i in range(9)])
    assert "'net.trunk.' in the file, 'net.model.' in the table" in renamed


def test_C13_a_prefix_and_a_missing_key_are_told_apart() -> None:
    found = keys("model.language_model.")
    found.remove("model.language_model.norm.weight")
    message = refused(TABLE, parameters(), found)
    assert "norm.weight needs model.norm.weight" in message and "1 parameters without keys" in message


def test_C13_harmless_buffers_are_dropped_with_a_reason() -> None:
    buffers = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(LAYERS)]
    found = plan(TABLE, parameters(), keys() + buffers)
    assert found.complete and found.dropped == dict.fromkeys(buffers, "derived from the config")


@pytest.mark.parametrize("pattern", ["vision.*", "vision.{a,b}", "{a,b}", "*"])
def test_drop_rows(pattern: str) -> None:
    found = plan(
        Table(*TABLE.rows, Drop(pattern, why="text only")), parameters(), [*keys(), "vision.a.weight", "vision.b"]
    )
    assert found.complete and found.dropped == {"vision.a.weight": "text only", "vision.b": "text only"}


def test_layers_that_the_config_does_not_count_are_left_over() -> None:
    message = refused(TABLE, [p for p in parameters() if not p.startswith("layers.27.")], keys())
    assert "4 keys without parameters" in message and "Correct the model's config" in message


def test_a_parameter_that_no_row_names() -> None:
    assert "rope.scale needs a row in the table" in refused(TABLE, parameters("rope.scale"), keys())


def test_two_rows_that_both_fit_are_ambiguous() -> None:
    table = Table(Map("a", "x"), Map("a", "y"))
    assert "a.weight: x.weight or y.weight" in refused(table, ["a.weight"], ["x.weight", "y.weight"])


def test_one_key_for_two_parameters_needs_a_split_or_a_tie() -> None:
    table = Table(Map("a", "x"), Map("b", "x"))
    assert "x.weight: a.weight or b.weight" in refused(table, ["a.weight", "b.weight"], ["x.weight"])


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tie'"):
        make_plan(Table(Tie("a", "b", when="ties")), [], [], {"tie": True})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Map("a.{i}", "b.{j}"),
        lambda: Map("a", "b.{q,k}"),
        lambda: Map("a.*", "b"),
        lambda: Fuse("a", "b"),
        lambda: Split("a", "b"),
        lambda: Split("{a,b}", "{c,d}"),
        lambda: Split("{a,b}", "c", dim=-1),
        lambda: StackExperts("a", "b"),
        lambda: StackExperts("a.{e}", "b.{e}"),
    ],
)
def test_rows_are_checked_when_the_table_is_written(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()
