"""Every known family against the parameters that its reference has on the meta device, options switched on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from onboard.arch.count import params
from onboard.facts.api import read

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "family_params.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c['model_type']}" for i, c in enumerate(CASES)])
def test_parameters_of_a_family(case: dict[str, Any]) -> None:
    facts = read({"model_type": case["model_type"], **case["changes"]})
    assert facts.known
    assert params(facts.arch).total == case["params"]


def test_how_many_families() -> None:
    assert len({c["model_type"] for c in CASES}) >= 65


def test_minicpm_multipliers() -> None:
    config = {"model_type": "minicpm", "hidden_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 36,
              "intermediate_size": 5760, "vocab_size": 122753, "scale_emb": 12, "dim_model_base": 256,
              "scale_depth": 1.4}  # fmt: skip
    arch = read(config).arch
    assert arch.embedding.multiplier == 12.0
    assert arch.head.multiplier == pytest.approx(256 / 2304)
    assert arch.layer(0).residual_scale == pytest.approx(1.4 / math.sqrt(40))


def test_opt_positions_start_after_two_rows() -> None:
    arch = read({"model_type": "opt"}).arch
    table = arch.embedding.positions
    assert table is not None
    assert (table.kind, table.learned_size, table.offset) == ("learned", 2050, 2)


def test_granite_4_has_no_positions_unless_asked() -> None:
    types = ["mamba", "attention"] * 16
    plain = read({"model_type": "granitemoehybrid", "layer_types": types}).arch.layer(1).attention
    turned = (
        read({"model_type": "granitemoehybrid", "layer_types": types, "position_embedding_type": "rope"})
        .arch.layer(1)
        .attention
    )
    assert plain is not None
    assert turned is not None
    assert (plain.positions.kind, turned.positions.kind) == ("none", "rotary")


def test_clamp_of_gpt_oss_and_of_deepseek_v4() -> None:
    from onboard.facts.api import load

    oss, v4 = load("openai/gpt-oss-20b").arch.layer(0).moe, load("deepseek-ai/DeepSeek-V4-Flash").arch.layer(0).moe
    assert oss is not None
    assert v4 is not None
    assert oss.clamp is not None
    assert v4.clamp is not None
    assert (oss.clamp.limit, oss.clamp.alpha, oss.clamp.up_shift) == (7.0, 1.702, 1.0)
    assert (v4.clamp.limit, v4.clamp.alpha, v4.clamp.up_shift) == (10.0, None, 0.0)


def test_gemma_1_activation_is_the_tanh_one() -> None:
    from onboard.facts.api import load

    facts = load("google/gemma-2b")
    mlp = facts.arch.layer(0).mlp
    assert mlp is not None
    assert mlp.activation == "gelu_tanh"
    assert any("gelu_pytorch_tanh" in note for note in facts.notes)


def test_two_ways_to_write_one_routing_are_the_same() -> None:
    """A softmax over the chosen scores equals a softmax over all, divided by the sum of the chosen."""
    from onboard.facts.api import load

    mixtral = load("mistralai/Mixtral-8x7B-v0.1").arch.layer(0).moe
    qwen = load("Qwen/Qwen3-30B-A3B").arch.layer(0).moe
    assert mixtral is not None
    assert qwen is not None
    assert mixtral.router == qwen.router


def test_greedy_routing_of_deepseek_v2_has_no_groups() -> None:
    base = {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 2,
        "num_experts_per_tok": 2,
        "n_group": 4,
        "topk_group": 2,
    }
    greedy = read({**base, "topk_method": "greedy"}).arch.layer(1).moe
    limited = read({**base, "topk_method": "group_limited_greedy"}).arch.layer(1).moe
    assert greedy is not None
    assert limited is not None
    assert (greedy.router.groups, limited.router.groups) == (1, 4)
    assert limited.router.group_score == "max"
