"""Attention against the modules of transformers: each option in a family that has it, sharded, in chunks, decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.vllm_neuron.nn.blocks import record, run_all_ways
from vllm_neuron.model.loading import Fuse, Map, StackExperts, Table
from vllm_neuron.nn import Alibi, Attention, QKNorm, QueryGrowth, Rotary, RotaryConfig

QKV = Fuse("attn.qkv", "{q,k,v}_proj")
O = Map("attn.o", "o_proj")  # noqa: E741
NORMS = Map("attn.{q,k}_norm", "{q,k}_norm")
PLAIN = (QKV, O)


def turn(size: int = 8, **options: Any) -> Callable[[], Rotary]:
    """Makes the default rotary for heads of that size."""
    return lambda: Rotary(RotaryConfig(head_size=size, base=10000.0, max_position=64, **options))


@dataclass(frozen=True)
class Case:
    """One family: its config, where its attention sits, our arguments and table."""

    model_type: str
    values: dict[str, Any]
    arguments: dict[str, Any]
    rows: tuple[Any, ...] = PLAIN
    rotary: Callable[[], Rotary] | None = field(default_factory=lambda: turn())
    path: str = "model.layers.{i}.self_attn"
    layer: int = 0
    kv_heads: int = 2
    heads: int = 4
    reference: dict[str, Any] = field(default_factory=dict)


GPT = {"num_key_value_heads": None, "intermediate_size": None}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
CASES = {
    "bias of q, k, v": Case("qwen2", {}, {"bias": True}),
    "norm of each head": Case(
        "qwen3", {"head_dim": 8, "rms_norm_eps": 1e-3}, {"qk_norm": QKNorm(1e-3)}, (*PLAIN, NORMS)
    ),
    "norm over all heads": Case(
        "olmo2", {"rms_norm_eps": 1e-3}, {"qk_norm": QKNorm(1e-3, width="full")}, (*PLAIN, NORMS)
    ),
    "norm over all heads, then a clip": Case(
        "olmoe",
        {"clip_qkv": 0.7, "num_experts": 2, "num_experts_per_tok": 1},
        {"qk_norm": QKNorm(1e-5, width="full"), "clip": 0.7},
        (*PLAIN, NORMS),
    ),
    "clip": Case("olmo", {"clip_qkv": 1.5}, {"clip": 1.5}),
    "layernorm with a weight a head": Case(
        "cohere",
        {"use_qk_norm": True, "layer_norm_eps": 1e-3, "rope_parameters": ROPE},
        {"qk_norm": QKNorm(1e-3, "layernorm", "each_head")},
        (*PLAIN, NORMS),
        turn(interleaved=True),
    ),
    "layernorm stored head by head": Case(
        "stablelm",
        {"qk_layernorm": True, "use_qkv_bias": True},
        {"qk_norm": QKNorm(1e-5, "layernorm", "each_head"), "bias": True},
        (*PLAIN, *(StackExperts(f"attn.{x}_norm", f"{x}_layernorm.norms.{{e}}") for x in "qk")),
        turn(rotary_size=2),
    ),
    "norm after rotary": Case(
        "hunyuan_v1_dense",
        {"head_dim": 8, "rms_norm_eps": 1e-3},
        {"qk_norm": QKNorm(1e-3, after_rotary=True)},
        (*PLAIN, Map("attn.{q,k}_norm", "{query,key}_layernorm")),
    ),
    "1 + weight, window": Case(
        "gemma3_text",
        {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 12, "layer_types": ["sliding_attention"] * 2,
         "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
        {"qk_norm": QKNorm(1e-6, plus_one=True), "window": 8, "scale": 12**-0.5},
        (*PLAIN, NORMS),
    ),
    "soft cap": Case(
        "gemma2",
        {"head_dim": 8, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 8,
         "layer_types": ["full_attention"] * 2},
        {"softcap": 1.5},
    ),
    "chunk, l2 after rotary": Case(
        "llama4_text",
        {"head_dim": 8, "attention_chunk_size": 16, "intermediate_size_mlp": 48, "num_local_experts": 2,
         "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "rope_parameters": ROPE},
        {"chunk": 16, "qk_norm": QKNorm(1e-5, "l2", weight=False, after_rotary=True)},
        rotary=turn(interleaved=True),
    ),
    "growth without positions": Case(
        "llama4_text",
        {"head_dim": 8, "attention_chunk_size": 16, "intermediate_size_mlp": 48, "num_local_experts": 2,
         "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "floor_scale": 4,
         "attn_scale": 0.3, "rope_parameters": ROPE},
        {"query_growth": QueryGrowth(4, 0.3)},
        rotary=None,
        layer=1,
    ),
    "growth with rotary": Case(
        "ministral3",
        {"head_dim": 8,
         "rope_parameters": {**ROPE, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.4}},
        {"query_growth": QueryGrowth(8, 0.4, offset=0)},
    ),
    "sinks": Case(
        "gpt_oss",
        {"head_dim": 8, "sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": ROPE},
        {"sinks": True, "bias": True, "o_bias": True, "window": 8},
        (*PLAIN, Map("attn.sinks", "sinks")),
    ),
    "gate inside q_proj": Case(
        "qwen3_next",
        {"head_dim": 8, "layer_types": ["full_attention"] * 2, "num_experts": 2, "num_experts_per_tok": 1,
         "rms_norm_eps": 1e-3, "attention_bias": True, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
        {"output_gate": "channel", "qk_norm": QKNorm(1e-3, plus_one=True), "bias": True, "o_bias": True,
         "gate_bias": True},
        (Fuse("attn.qkv", "{q,k,v}_proj", layout="query_gate"), Map("attn.gate", "q_proj", layout="query_gate"), O,
         NORMS),
        turn(rotary_size=2),
    ),
    "gate of its own": Case(
        "afmoe",
        {"head_dim": 8, "layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "num_experts": 2,
         "num_experts_per_tok": 1, "num_dense_layers": 2, "rms_norm_eps": 1e-3},
        {"output_gate": "channel", "qk_norm": QKNorm(1e-3), "window": 8},
        (*PLAIN, NORMS, Map("attn.gate", "gate_proj")),
    ),
    "softplus gate a head": Case(
        "laguna",
        {"head_dim": 8, "layer_types": ["full_attention"] * 2, "rms_norm_eps": 1e-3, "num_experts": 2,
         "num_experts_per_tok": 1, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
        {"output_gate": "head", "gate_act": "softplus", "qk_norm": QKNorm(1e-3)},
        (*PLAIN, NORMS, Map("attn.gate", "g_proj")),
    ),
    "softplus gate a channel": Case(
        "laguna",
        {"head_dim": 8, "layer_types": ["full_attention"] * 2, "rms_norm_eps": 1e-3, "num_experts": 2, "gating": "x",
         "num_experts_per_tok": 1, "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE}},
        {"output_gate": "channel", "gate_act": "softplus", "qk_norm": QKNorm(1e-3)},
        (*PLAIN, NORMS, Map("attn.gate", "g_proj")),
    ),
    "per head, alibi": Case(
        "bloom",
        {"n_head": 4, "n_layer": 2, "num_attention_heads": None, "num_hidden_layers": None, **GPT},
        {"bias": True, "o_bias": True, "alibi": Alibi()},
        (Map("attn.qkv", "query_key_value", layout="per_head"), Map("attn.o", "dense")),
        None,
        "transformer.h.{i}.self_attention",
        kv_heads=4,
        reference={"residual": True},
    ),
    "concatenated, alibi, clip": Case(
        "mpt",
        {"d_model": 32, "n_heads": 4, "n_layers": 2, "attn_config": {"clip_qkv": 0.9}},
        {"alibi": Alibi(), "clip": 0.9},
        (Map("attn.qkv", "Wqkv"), Map("attn.o", "out_proj")),
        None,
        "transformer.blocks.{i}.attn",
        kv_heads=4,
    ),
    "grouped": Case(
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "alibi": False, **GPT},
        {"bias": True, "o_bias": True},
        (Map("attn.qkv", "query_key_value", layout="grouped"), Map("attn.o", "dense")),
        path="transformer.h.{i}.self_attention",
    ),
    "multi-query": Case(
        "falcon",
        {"new_decoder_architecture": False, "multi_query": True, "bias": False, "alibi": False, **GPT},
        {},
        (Map("attn.qkv", "query_key_value"), Map("attn.o", "dense")),
        path="transformer.h.{i}.self_attention",
        kv_heads=1,
    ),
    "per head, rounded alibi": Case(
        "falcon",
        {"new_decoder_architecture": False, "multi_query": False, "bias": True, "alibi": True, **GPT},
        {"bias": True, "o_bias": True, "alibi": Alibi(scale=8**-0.5, rounded=True)},
        (Map("attn.qkv", "query_key_value", layout="per_head"), Map("attn.o", "dense")),
        None,
        "transformer.h.{i}.self_attention",
        kv_heads=4,
        reference={"implementation": "sdpa"},  # its eager path adds the biases twice
    ),
    "per head, partial rotary": Case(
        "gpt_neox",
        {"num_key_value_heads": None},
        {"bias": True, "o_bias": True},
        (Map("attn.qkv", "query_key_value", layout="per_head"), Map("attn.o", "dense")),
        turn(rotary_size=2),
        "gpt_neox.layers.{i}.attention",
        kv_heads=4,
    ),
    "transposed": Case(
        "gpt2",
        {"n_embd": 32, "n_head": 4, "n_layer": 2},
        {"bias": True, "o_bias": True},
        (Map("attn.qkv", "c_attn", transpose=True), Map("attn.o", "c_proj", transpose=True)),
        None,
        "transformer.h.{i}.attn",
        kv_heads=4,
    ),
    "multi-query of bigcode": Case(
        "gpt_bigcode",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "multi_query": True},
        {"bias": True, "o_bias": True},
        (Map("attn.qkv", "c_attn"), Map("attn.o", "c_proj")),
        None,
        "transformer.h.{i}.attn",
        kv_heads=1,
    ),
    "four blocks": Case(
        "codegen",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "n_positions": 64, "n_ctx": 64},
        {},
        (Map("attn.qkv", "qkv_proj", layout="four_blocks"), Map("attn.o", "out_proj")),
        turn(rotary_size=4, interleaved=True),
        "transformer.h.{i}.attn",
        kv_heads=4,
    ),
    "norm before the output projection": Case(
        "bitnet",
        {"rms_norm_eps": 1e-3, "rope_parameters": ROPE},
        {"out_norm": QKNorm(1e-3, width="full")},
        (*PLAIN, Map("attn.out_norm", "attn_sub_norm")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_in_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = record(case.model_type, case.path, case.values, layers=(case.layer,), **case.reference)
    size = case.arguments.get("head_size", 8)

    def make() -> nn.Module:
        rotary = None if case.rotary is None else case.rotary()
        return Attention(
            0, 32, heads=case.heads, kv_heads=case.kv_heads, head_size=size, rotary=rotary, **case.arguments
        )

    assert run_all_ways(tmp_path, reference, make, Table(*case.rows)) < 1e-5
    changed = {"scale": 0.37} if "scale" not in case.arguments else {"scale": None}
    worse = dict(case.arguments) | changed
    other = run_all_ways(
        tmp_path,
        reference,
        lambda: Attention(
            0,
            32,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_size=size,
            rotary=None if case.rotary is None else case.rotary(),
            **worse,
        ),
        Table(*case.rows),
        ranks=(1,),
    )
    assert other > 1e-3, "the reference sees the scale, so it would see the rest"
