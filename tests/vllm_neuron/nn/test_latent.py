"""Latent attention in absorbed form against the modules of transformers, which expand keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.vllm_neuron.nn.blocks import record, run_all_ways
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.loading import Map, Table
from vllm_neuron.nn import LatentAttention, QueryGrowth, Rotary, RotaryConfig
from vllm_neuron.parallel import run_in_threads

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "rope_parameters": ROPE,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 2,
}
DOWN = (
    Map("attn.kv_a", "kv_a_proj_with_mqa"),
    Map("attn.kv_norm", "kv_a_layernorm"),
    Map("attn.kv_b", "kv_b_proj"),
    Map("attn.o", "o_proj"),
)
LOW_RANK = (Map("attn.q_{a,b}", "q_{a,b}_proj"), Map("attn.q_norm", "q_a_layernorm"), *DOWN)
DIRECT = (Map("attn.q", "q_proj"), *DOWN)


@dataclass(frozen=True)
class Case:
    """A family's config, our arguments and rows."""

    model_type: str
    values: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    rows: tuple[Any, ...] = LOW_RANK
    interleaved: bool = True
    path: str = "model.layers.{i}.self_attn"
    q_rank: int | None = 20


CASES = {
    "deepseek v3": Case("deepseek_v3", {"q_lora_rank": 20}),
    "deepseek v3, biases, half rotary": Case(
        "deepseek_v3",
        {"q_lora_rank": 20, "attention_bias": True, "rope_interleave": False},
        {"q_bias": True, "kv_bias": True, "o_bias": True},
        interleaved=False,
    ),
    "deepseek v3, yarn's mscale": Case(
        "deepseek_v3",
        {"q_lora_rank": 20, "rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 1.0, "mscale": 1.0,
                                                "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}},
    ),
    "deepseek v2, direct query": Case("deepseek_v2", {"q_lora_rank": None}, {}, DIRECT, q_rank=None),
    "deepseek v2": Case("deepseek_v2", {"q_lora_rank": 20}),
    "minicpm3": Case("minicpm3", {"q_lora_rank": 20, "rms_norm_eps": 1e-6}, interleaved=False),
    "longcat": Case(
        "longcat_flash",
        {"q_lora_rank": 20, "num_layers": 2, "n_routed_experts": 2, "num_experts_per_tok": 2, "zero_expert_num": 1,
         "expert_ffn_hidden_size": 16, "ffn_hidden_size": 48, "head_dim": 6, "rms_norm_eps": 1e-6},
        {"q_scale": (32 / 20) ** 0.5, "kv_scale": (32 / 24) ** 0.5},
        path="model.layers.{i}.self_attn.0",
    ),
    "mistral 4, growth": Case(
        "mistral4",
        {"q_lora_rank": 20, "head_dim": 6, "rope_parameters": {**ROPE, "original_max_position_embeddings": 8,
                                                "llama_4_scaling_beta": 0.3}},
        {"query_growth": QueryGrowth(8, 0.3, offset=0)},
        path="layers.{i}.self_attn",
    ),
}  # fmt: skip


def make(case: Case) -> nn.Module:
    """Our block."""
    rotary = Rotary(RotaryConfig(head_size=6, base=10000.0, max_position=64, interleaved=case.interleaved))
    sizes = {"kv_rank": 24, "nope_size": 10, "rope_size": 6, "head_size_v": 14, "q_rank": case.q_rank}
    return LatentAttention(0, 32, heads=4, rotary=rotary, eps=1e-6, **sizes, **case.arguments)


@pytest.mark.parametrize("name", CASES)
def test_as_in_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = record(case.model_type, case.path, MLA | case.values)
    assert run_all_ways(tmp_path, reference, lambda: make(case), Table(*case.rows)) < 1e-5
    scaled = Case(case.model_type, rows=case.rows, q_rank=case.q_rank, interleaved=case.interleaved,
                  arguments=case.arguments | {"scale": 0.1})  # fmt: skip
    assert run_all_ways(tmp_path, reference, lambda: make(scaled), Table(*case.rows), ranks=(1,)) > 1e-3


def test_the_cache_is_one_latent_a_token_on_every_rank() -> None:
    for spec in run_in_threads(4, lambda group: make(CASES["deepseek v3"]).spec):
        assert spec is not None and spec.kind == "latent"
        assert (spec.num_kv_heads, spec.token_width, spec.value_size) == (1, 24 + 6, 0)


def test_heads_that_the_ranks_do_not_divide() -> None:
    with pytest.raises(ConfigError, match="Sizes that work: 1, 2, 4"):
        run_in_threads(3, lambda group: make(CASES["deepseek v3"]))
