"""Names of checkpoints -> rows of a table, as the families store them."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onboard.scaffold import roles
from onboard.scaffold.roles import Stored, patterns
from onboard.scaffold.table import Layout, Rows, braces, rows

H, E = 96, 4
GPT2 = ("transformer.wte.weight", "transformer.wpe.weight", "transformer.h.{}.ln_1.weight",
        "transformer.h.{}.ln_1.bias", "transformer.h.{}.attn.c_attn.weight", "transformer.h.{}.attn.c_attn.bias",
        "transformer.h.{}.attn.c_proj.weight", "transformer.h.{}.ln_2.weight", "transformer.h.{}.mlp.c_fc.weight",
        "transformer.h.{}.mlp.c_proj.weight", "transformer.ln_f.weight", "lm_head.weight")  # fmt: skip
LLAMA = ("model.embed_tokens.weight", "model.layers.{}.input_layernorm.weight",
         "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.k_proj.weight",
         "model.layers.{}.self_attn.v_proj.weight", "model.layers.{}.self_attn.o_proj.weight",
         "model.layers.{}.post_attention_layernorm.weight", "model.layers.{}.mlp.gate_proj.weight",
         "model.layers.{}.mlp.up_proj.weight", "model.layers.{}.mlp.down_proj.weight", "model.norm.weight",
         "lm_head.weight")  # fmt: skip


def stored(*names: str, layers: int = 2, **shapes: tuple[int, ...]) -> list[Stored]:
    """Patterns of a checkpoint; ``shapes`` by the end of a name, with ``__`` for a dot."""
    keys = [n.format(i) for n in names for i in range(layers if "{}" in n else 1)]
    ends = {end.replace("__", "."): shape for end, shape in shapes.items()}
    return patterns({k: next((s for end, s in ends.items() if k.endswith(end)), (H, H)) for k in keys})


def lines(found: Rows) -> list[str]:
    for line in found.lines:
        ast.parse(line)
    return found.lines


def test_llama():
    layout = Layout({"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}, "model.norm", hidden=H)
    found = rows(stored(*LLAMA), layout)
    assert lines(found) == [
        'Map("embed", "model.embed_tokens")',
        'Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm")',
        'Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm")',
        'Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj")',
        'Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj")',
        'Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj")',
        'Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj")',
        'Map("norm", "model.norm")',
        'Map("head", "lm_head")',
    ]
    assert found.unknown == [] and found.kinds == {"Map", "Fuse"}


def test_transposed_matrices():
    turned = frozenset(f"transformer.h.{{i}}.{n}" for n in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"))
    layout = Layout(
        {"ln_1": "attn_norm", "ln_2": "mlp_norm"}, "transformer.ln_f", transposed=turned, gated_mlp=False, hidden=H
    )
    found = rows(stored(*GPT2), layout)
    assert 'Map("positions", "transformer.wpe")' in lines(found)
    assert 'Map("layers.{i}.attn.qkv", "transformer.h.{i}.attn.c_attn", transpose=True)' in found.lines
    assert 'Map("layers.{i}.mlp.up", "transformer.h.{i}.mlp.c_fc", transpose=True)' in found.lines
    assert 'Map("layers.{i}.mlp.down", "transformer.h.{i}.mlp.c_proj", transpose=True)' in found.lines
    assert found.unknown == []


@pytest.mark.parametrize(
    ("qkv", "written"), [("per head", "per_head"), ("grouped", "grouped"), ("four blocks", "four_blocks")]
)
def test_fused_queries_keep_their_layout(qkv, written):
    found = rows(stored("h.{}.self_attention.query_key_value.weight"), Layout({}, qkv=qkv))
    expected = f'Map("layers.{{i}}.attn.qkv", "h.{{i}}.self_attention.query_key_value", layout={written!r})'
    assert lines(found) == [expected]


PREFIX = "model.layers.{}.mlp."


def test_experts_one_by_one():
    names = [PREFIX + f"experts.{e}.{p}_proj.weight" for e in range(E) for p in ("gate", "up", "down")]
    found = rows(stored(PREFIX + "gate.weight", *names), Layout({}, hidden=H))
    assert lines(found) == [
        'Map("layers.{i}.mlp.router", "model.layers.{i}.mlp.gate")',
        'StackExperts("layers.{i}.mlp.experts.gate_up", "model.layers.{i}.mlp.experts.{e}.{gate,up}_proj")',
        'StackExperts("layers.{i}.mlp.experts.down", "model.layers.{i}.mlp.experts.{e}.down_proj")',
    ]


def test_stacked_experts_that_are_interleaved_and_turned():
    names = [PREFIX + f"experts.{n}" for n in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")]
    shapes = {"gate_up_proj": (E, H, 112), "gate_up_proj_bias": (E, 112), "down_proj": (E, 56, H)}
    found = rows(stored(*names, **shapes, down_proj_bias=(E, H)), Layout({}, interleaved_experts=True, hidden=H))
    assert set(lines(found)) == {
        'Map("layers.{i}.mlp.experts.gate_up.weight", "model.layers.{i}.mlp.experts.gate_up_proj", transpose=True, '
        "layout='interleaved')",
        'Map("layers.{i}.mlp.experts.gate_up.bias", "model.layers.{i}.mlp.experts.gate_up_proj_bias", '
        "layout='interleaved')",
        'Map("layers.{i}.mlp.experts.down.weight", "model.layers.{i}.mlp.experts.down_proj", transpose=True)',
        'Map("layers.{i}.mlp.experts.down.bias", "model.layers.{i}.mlp.experts.down_proj_bias")',
    }


def test_stacked_experts_the_right_way_round():
    names = [PREFIX + f"experts.{n}" for n in ("gate_up_proj", "down_proj")]
    found = rows(stored(*names, gate_up_proj=(E, 112, H), down_proj=(E, H, 56)), Layout({}, hidden=H))
    assert not [line for line in lines(found) if "transpose" in line or "layout" in line]


def test_shared_expert_router_and_correction():
    names = ("gate.weight", "gate.e_score_correction_bias", "shared_expert_gate.weight")
    shared = [f"shared_expert.{p}_proj.weight" for p in ("gate", "up", "down")]
    found = rows(stored(*(PREFIX + n for n in (*names, *shared))), Layout({}))
    assert lines(found) == [
        'Map("layers.{i}.mlp.router", "model.layers.{i}.mlp.gate")',
        'Map("layers.{i}.mlp.router.correction_bias", "model.layers.{i}.mlp.gate.e_score_correction_bias")',
        'Map("layers.{i}.mlp.shared_gate", "model.layers.{i}.mlp.shared_expert_gate")',
        'Fuse("layers.{i}.mlp.shared.gate_up", "model.layers.{i}.mlp.shared_expert.{gate,up}_proj")',
        'Map("layers.{i}.mlp.shared.down", "model.layers.{i}.mlp.shared_expert.down_proj")',
    ]


def test_latent_attention():
    parts = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
    found = rows(stored(*(f"model.layers.{{}}.self_attn.{p}.weight" for p in parts)), Layout({}, latent=True))
    ours = [line.split('"')[1].removeprefix("layers.{i}.attn.") for line in lines(found)]
    assert ours == ["q_a", "q_norm", "q_b", "kv_a", "kv_norm", "kv_b", "o"] and not found.unknown


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.{}.self_attn.lambda_q1",
        "model.layers.{}.self_attn.groupnorm.weight",
        "model.layers.{}.mlp.odd.weight",
        "model.altup.weight",
        "model.layers.{}.conv.weight",
    ],
)
def test_a_tensor_that_no_part_takes_is_said(name):
    layout = Layout({"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}, "model.norm")
    found = rows(stored(*LLAMA, name), layout)
    assert found.unknown == [name.removesuffix(".weight").replace("{}", "{i}")]


def test_a_second_tensor_for_the_same_part_is_said_and_not_dropped():
    found = rows(stored("l.{}.attn.o_proj.weight", "l.{}.attn.dense.weight"), Layout({}))
    assert found.unknown == ["l.{i}.attn.dense"] and len(found.lines) == 1


def test_numbers_in_names():
    found = stored("t.h.{}.mlp.experts.3.w1.weight", "t.h.{}.ffn.0.weight", "t.ffn.weight", layers=12)
    assert [one.pattern for one in found] == ["t.h.{i}.mlp.experts.{e}.w1", "t.h.{i}.ffn.0", "t.ffn"]


def test_norms_by_the_order_of_execution():
    executed = ["a.post", "a.pre", "a.post", "a.mid"]
    assert roles.order(["never", "a.mid", "a.pre", "a.post"], executed) == ["a.post", "a.pre", "a.mid", "never"]


@given(st.lists(st.text("abq_.", max_size=8), min_size=2, max_size=4, unique=True))
def test_braces_say_every_name(names):
    text = braces(names)
    before, inside = text.split("{", 1)
    inside, after = inside.rsplit("}", 1)
    assert [before + middle + after for middle in inside.split(",")] == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a.q_proj", "a.k_proj", "a.v_proj"], "a.{q,k,v}_proj"),
        (["m.w1", "m.w3"], "m.w{1,3}"),
        (["m.gate_proj", "m.up_proj"], "m.{gate,up}_proj"),
        (["m.gate_proj", "m.gate_up_proj"], "m.gate_{,up_}proj"),
    ],
)
def test_braces(names, text):
    assert braces(names) == text
