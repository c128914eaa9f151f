"""What a diff reports: rows, their items, and what counts as a difference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onboard.arch.spec import ArchSpec, Beyond
from onboard.diff import ITEMS, Diff, diff
from onboard.diff.labels import pattern, pattern_text
from onboard.facts.api import load
from tests.support.specs import facts, gemma4, llama, mixture


def rows(result: Diff) -> dict[str, Any]:
    return {row.field: row for row in result.rows}


def test_llama_against_gemma4_fills_all_eight_items() -> None:
    result = diff(load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-31B-it"))
    assert {row.item for row in result.of_kind("semantic")} == set(ITEMS)
    found = rows(result)
    assert found["attention.window"].b == {"sliding": 1024, "full": None}
    assert found["attention.window"].covered_by == "Attention(window=1024) on sliding; Attention(window=None) on full"
    assert found["attention.positions.base"].b == {"sliding": 1e4, "full": 1e6}
    assert found["layers.pattern"].b == "5 sliding, 1 full, repeated"
    assert found["layers.kv_heads"].b == {"sliding": 16, "full": 4}
    assert found["head.softcap"].covered_by == "LMHead(softcap=30.0)"
    assert found["mlp.activation"].covered_by == "GatedMLP(act='gelu_pytorch_tanh')"
    assert found["attention.v_norm"].covered_by == "Attention(v_norm=QKNorm(1e-06, weight=False))"
    assert found["attention.window"].b_source == "explicit (text_config.sliding_window)"
    assert found["hidden"].kind == "size"


def test_summary_counts_semantic_rows_that_go_with_no_other() -> None:
    result = diff(load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-31B-it"))
    summary = result.summary()
    semantic = result.of_kind("semantic")
    assert summary["differences"] == len(result.counted) == sum(summary["by_item"].values()) < len(semantic)
    assert summary["covered"] + summary["to_write"] == summary["differences"]
    assert summary["to_write"] == sum(row.covered_by is None for row in result.counted) > 0
    assert summary["text"].startswith("google/gemma-4-31B-it against meta-llama/Llama-3.1-8B: ")
    assert f"{summary['covered']} covered by building blocks, {summary['to_write']} to write" in summary["text"]


@pytest.mark.parametrize("make", [llama, gemma4, mixture])
def test_a_model_against_itself_is_empty(make: Any) -> None:
    assert diff(facts(make()), facts(make()), spelling=True).rows == ()


def test_sizes_alone_are_no_semantic_difference() -> None:
    result = diff(load("meta-llama/Llama-3.1-8B"), load("meta-llama/Llama-3.1-70B"))
    assert result.of_kind("semantic") == () and result.differs
    assert {"hidden", "layers", "mlp.size", "attention.heads"} <= {row.field for row in result.of_kind("size")}


def test_the_same_decoder_in_a_section_is_a_spelling_until_something_differs() -> None:
    flat, nested = facts(gemma4()), facts(gemma4(), section="text_config")
    assert diff(flat, nested).rows == ()
    spelled = diff(flat, nested, spelling=True)
    assert [(r.field, r.kind) for r in spelled.rows] == [("config.section", "spelling")] and not spelled.differs
    assert rows(diff(facts(llama()), nested))["config.section"].kind == "semantic"


def test_experts_are_one_difference_when_only_one_model_has_them() -> None:
    result = diff(facts(llama(hidden=2048)), facts(mixture()))
    assert {row.field for row in result.of_kind("semantic")} == {"attention.qk_norm", "moe"}
    moe = rows(result)["moe"]
    assert moe.a is None and "experts 128" in moe.b and moe.covered_by == "MoE()" and moe.missing is None


def test_more_experts_are_a_size() -> None:
    result = diff(facts(mixture(128)), facts(mixture(256)))
    assert [(row.field, row.kind) for row in result.rows] == [("moe.experts", "size")]


def test_attention_arguments_are_not_claimed_for_latent_attention() -> None:
    found = rows(diff(load("meta-llama/Llama-3.1-8B"), load("deepseek-ai/DeepSeek-V3")))
    assert found["mixer"].covered_by == "LatentAttention()"
    assert found["attention.scale"].covered_by.startswith("LatentAttention(scale=")
    assert not any((row.covered_by or "").startswith("Attention(") for row in found.values())


def test_sizes_by_layer_touch_the_cache_only_where_they_are_in_it() -> None:
    found = rows(diff(load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-E2B-it")))
    assert found["layers.mlp_size"].affects == ("config.py", "model.py layer")
    assert "KV spec" in found["layers.head_size_k"].affects


def test_norms_without_weight_have_no_row_in_the_checkpoint_table() -> None:
    base = load("meta-llama/Llama-3.1-8B")
    gemma = rows(diff(base, load("google/gemma-4-31B-it")))
    assert "checkpoint table" not in gemma["attention.v_norm"].affects
    assert "checkpoint table" in gemma["attention.qk_norm"].affects
    llama4 = rows(diff(base, load("meta-llama/Llama-4-Scout-17B-16E")))
    assert llama4["attention.qk_norm"].affects == ("config.py", "model.py attention")


def test_growth_of_the_query_scale_is_a_row_of_its_own() -> None:
    found = rows(diff(load("meta-llama/Llama-3.1-8B"), load("mistralai/Ministral-3-3B-Instruct-2512")))
    assert (
        "QueryGrowth(floor=16384, beta=0.1" in found["attention.query_growth"].covered_by
        and found["attention.query_growth"].counts
    )
    assert "rope_parameters" in found["attention.query_growth"].b_source
    assert "kind='yarn'" in found["attention.positions.scaling"].covered_by
    assert "beta 0.1" not in found["attention.positions.scaling"].b


def test_target_a_turns_the_coverage_around() -> None:
    pair = load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-31B-it")
    result = diff(*pair, target="a")
    assert all(row.missing is None for row in result.rows)
    assert result.sentence.startswith("meta-llama/Llama-3.1-8B against google/gemma-4-31B-it")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all scalars in nested dataclasses and tuples."""
    if dataclasses.is_dataclass(value):
        return [p for f in dataclasses.fields(value) for p in leaves(getattr(value, f.name), (*path, f.name))]
    if isinstance(value, tuple) and any(dataclasses.is_dataclass(v) for v in value):
        return [p for i, v in enumerate(value) for p in leaves(v, (*path, i))]
    return [path]


LISTS = {"mrope", "factors_short", "factors_long"}


def changed(value: Any, path: tuple[Any, ...], name: Any = None) -> Any:
    """A copy of ``value`` with the scalar at ``path`` changed to another one of its kind."""
    if not path:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return value * 2 + 2
        if isinstance(value, tuple):
            return (*value, *value, value[0]) if value else (1,)
        if isinstance(value, str):
            return f"other {value}"
        return (7,) if name in LISTS else 7
    if isinstance(value, tuple):
        return tuple(changed(v, path[1:]) if i == path[0] else v for i, v in enumerate(value))
    return dataclasses.replace(value, **{path[0]: changed(getattr(value, path[0]), path[1:], path[0])})


SPECS = ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-4-31B-it"]
OPAQUE = {"towers", "layer_kinds", "dtype", "beyond"}
# Parts that are None in these models: a whole object would have to be made up to change them.
PARTS = {"per_layer_input", "hyper_connections", "positions", "scaling", "norm", "latent", "indexer", "compressor",
         "state", "mlp", "moe", "clamp", "shared", "input_norm", "qk_norm", "query_norm", "v_norm", "out_norm",
         "pre_mixer", "post_mixer", "pre_mlp", "post_mlp", "post_dense", "pre_moe", "post_moe", "down_norm",
         "attention"}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_no_field_of_an_architecture_is_overlooked(name: str) -> None:
    from onboard.diff.compare import Comparison

    arch = load(name).arch
    overlooked = []
    for path in leaves(arch):
        if path[0] in OPAQUE or (path[-1] in PARTS):
            continue
        other: ArchSpec = changed(arch, path)
        pair = Comparison(facts(arch), facts(other), "b")
        pair.layers()
        pair.fields()
        if not pair.rows:
            overlooked.append(".".join(map(str, path)))
    assert overlooked == []


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        (["a"] * 9, "all alike"),
        ((["s"] * 5 + ["f"]) * 10, "5 s, 1 f, repeated"),
        ((["s"] * 5 + ["f"]) * 10 + ["s", "s"], "5 s, 1 f, repeated"),
        (["d"] * 3 + ["m"] * 58, "3 d, then m"),
        (["d"] + ["a", "b"] * 20, "1 d, then 1 a, 1 b, repeated"),
        (["a", "b", "c"], "1 a, 1 b, then c"),
        (["f"], "all alike"),
        ([], "all alike"),
    ],
)
def test_pattern_text(sequence: list[str], text: str) -> None:
    assert pattern_text(sequence) == text


def test_pattern_gives_the_sequence_back() -> None:
    import random

    rng = random.Random(0)
    for _ in range(500):
        made = [rng.choice("ab") for _ in range(rng.randrange(1, 14))]
        prefix, period = pattern(made)
        rest = len(made) - len(prefix)
        assert list(prefix) + [period[i % len(period)] for i in range(rest)] == made if period else list(prefix) == made


def test_a_part_that_the_target_lacks_is_nothing_to_write() -> None:
    found = rows(diff(load("Qwen/Qwen3-Next-80B-A3B-Instruct"), load("deepseek-ai/DeepSeek-V3")))
    assert found["attention.qk_norm"].missing is None and found["attention.output_gate"].missing is None
    assert found["attention.scale"].missing is None


def test_depth_costs_next_to_nothing() -> None:
    import time

    def best(layers: int) -> float:
        pair = facts(llama(layers)), facts(dataclasses.replace(gemma4(), layer_kinds=(0, 0, 1) * (layers // 3)))
        times = []
        for _ in range(15):
            start = time.process_time()
            diff(*pair)
            times.append(time.process_time() - start)
        return min(times)

    assert best(3000) - best(30) < 0.05, "seconds of CPU, of about 0.25 for the whole command"


def test_what_no_field_can_say_is_a_difference_to_write() -> None:
    odd = dataclasses.replace(llama(), beyond=(Beyond("altup", "Gemma3nTextAltUp"), Beyond("laurel", "Block", "all")))
    result = diff(facts(llama()), facts(odd))
    found = rows(result)
    assert (found["beyond.altup"].a, found["beyond.altup"].b) == (None, "Gemma3nTextAltUp")
    assert found["beyond.laurel"].b == "Block (all)"
    assert all(row.missing and row.covered_by is None for row in found.values())
    assert result.summary()["to_write"] == 2
    assert diff(facts(odd), facts(odd)).rows == ()
    back = diff(facts(odd), facts(llama())).rows
    assert [row.missing for row in back] == [None, None]
    assert all(row.covered_by for row in back)
