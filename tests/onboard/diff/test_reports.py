"""Public reports that are about the diff: each is two configs and whether they are one architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onboard.diff import Diff, diff
from onboard.facts.api import ModelFacts, load, read

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 8,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
         "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 4096,
         "tie_word_embeddings": False, "torch_dtype": "bfloat16"}  # fmt: skip
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
GEMMA3 = {**{k: v for k, v in LLAMA.items() if k not in ("rope_theta", "hidden_act")}, "model_type": "gemma3_text",
          "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "head_dim": 128,
          "query_pre_attn_scalar": 128, "sliding_window": 512, "hidden_activation": "gelu_pytorch_tanh"}  # fmt: skip
LLAMA4 = {**LLAMA, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "intermediate_size_mlp": 16384,
          "num_local_experts": 16, "num_experts_per_tok": 1, "attention_chunk_size": 8192, "head_dim": 128,
          "no_rope_layer_interval": 4, "interleave_moe_layer_step": 1}  # fmt: skip


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


def same(*configs: dict[str, Any]) -> bool:
    """Whether no difference, of meaning or of size, is reported for any pair."""
    facts = [read(config) for config in configs]
    return not any(diff(one, other).differs for one in facts for other in facts)


def found(a: ModelFacts, b: ModelFacts) -> dict[str, Any]:
    result: Diff = diff(a, b)
    return {row.field: row for row in result.of_kind("semantic")}


def test_A1_null_head_dim_is_the_same_as_absent_or_given() -> None:
    assert same({**LLAMA, "head_dim": None}, LLAMA, {**LLAMA, "head_dim": 128})
    assert not same(LLAMA, {**LLAMA, "head_dim": 64})


def test_A3_head_dim_that_does_not_divide_is_told_as_a_width() -> None:
    odd = {**LLAMA, "hidden_size": 1792, "num_attention_heads": 24, "head_dim": 128}
    row = found(read(LLAMA), read(odd))["attention.width"]
    assert (row.a, row.b) == ("hidden", "not hidden")
    assert "checkpoint table" in row.affects


def test_A7_dtype_spellings() -> None:
    plain = without(LLAMA, "torch_dtype")
    assert same({**plain, "torch_dtype": "bfloat16"}, {**plain, "dtype": "torch.bfloat16"})
    rows = diff(read(LLAMA), read({**plain, "torch_dtype": None})).rows
    assert [(r.field, r.a, r.b) for r in rows] == [("dtype", "bfloat16", "unspecified")]


def test_A9_old_names_are_compared_by_meaning(tmp_path: Path) -> None:
    mpt = {"architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32,
           "expansion_ratio": 4, "vocab_size": 50432, "max_seq_len": 2048}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(mpt))
    result = diff(load("meta-llama/Llama-2-7b-hf"), load(str(path)))
    told = {row.field for row in result.rows}
    assert not {"hidden", "layers", "attention.heads"} & told, "4096, 32 and 32 under other names are no difference"
    assert {"attention.positions.kind", "mlp.gated", "norms.kind"} <= told


def test_A11_window_pattern_and_layer_types() -> None:
    types = ["sliding_attention"] * 5 + ["full_attention"]
    old, new = {**GEMMA3, "sliding_window_pattern": 6}, {**GEMMA3, "layer_types": types}
    assert same(old, new, GEMMA3)
    rows = diff(read(GEMMA3), read(new), spelling=True).rows
    source = next(row for row in rows if row.field == "layers.kinds")
    assert source.kind == "spelling" and "family" in source.a and "explicit" in source.b


def test_C11_biases_that_only_the_family_knows() -> None:
    row = found(read(LLAMA), read(QWEN2))["attention.bias"]
    assert (row.a, row.b) == ("none", "q, k, v")
    assert row.covered_by == "Attention(bias=True, o_bias=False)"
    assert "family" in row.b_source and "checkpoint table" in row.affects


def test_E1_both_generations_of_rotary_settings() -> None:
    plain = without(LLAMA, "rope_theta")
    assert same(
        {**plain, "rope_theta": 1000000, "rope_scaling": None},
        {**plain, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}},
    )


def test_E3_one_rope_block_for_each_layer_type() -> None:
    types = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    new = {**GEMMA3, **types, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1000000}}}  # fmt: skip
    old = {**GEMMA3, **types, "rope_local_base_freq": 10000, "rope_theta": 1000000,
           "rope_scaling": {"rope_type": "linear", "factor": 8}}  # fmt: skip
    assert same(old, new)
    row = found(read(LLAMA), read(new))["attention.positions.base"]
    assert row.b == {"sliding": 1e4, "full": 1e6}


def test_E7_proportional_rope_is_not_claimed_as_partial() -> None:
    row = found(load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-31B-it"))["attention.positions.scaling"]
    assert "proportional: 0.25 of the head" in row.b["full"]
    assert "RotaryConfig(kind='proportional', rotary_size=int(0.25 * head_size)) on full" in row.covered_by
    assert "kind='default') on sliding" in row.covered_by


def test_F1_a_window_whose_switch_is_off() -> None:
    off = {**QWEN2, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 8}
    assert same(off, QWEN2)
    assert not same({**off, "use_sliding_window": True, "max_window_layers": 4}, QWEN2)


def test_F7_empty_no_rope_list_means_the_interval() -> None:
    empty = {**LLAMA4, "no_rope_layers": []}
    assert same(empty, {**LLAMA4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]})
    rows = found(read(LLAMA), read(empty))
    assert rows["attention.chunk"].b == {"chunked": 8192, "full": None}
    assert rows["attention.positions.kind"].b == {"chunked": "rotary", "full": "none"}
    assert rows["layers.pattern"].b == "3 chunked, 1 full, no positions, repeated"


def test_G1_norm_of_queries_and_keys_and_its_place() -> None:
    row = found(load("meta-llama/Llama-3.1-8B"), load("Qwen/Qwen3-8B"))["attention.qk_norm"]
    assert row.a is None and "before rope" in row.b and "per head" in row.b
    assert row.covered_by == "Attention(qk_norm=QKNorm(1e-06))"


def test_G3_scales_of_embedding_and_logits() -> None:
    gemma = found(load("meta-llama/Llama-3.1-8B"), load("google/gemma-2-9b"))
    assert gemma["embedding.multiplier"].b == "sqrt(hidden)"
    assert gemma["head.softcap"].b == 30.0 and gemma["attention.softcap"].b == 50.0
    assert "head.multiplier" not in gemma, "the embedding's scale does not reach the logits"
    granite = found(load("meta-llama/Llama-3.1-8B"), load("ibm-granite/granite-3.3-8b-instruct"))
    assert {"embedding.multiplier", "layer.residual_scale", "head.multiplier", "attention.scale"} <= set(granite)
    assert granite["layer.residual_scale"].covered_by == "wiring: x + 0.22 * block(x) in the layer's forward"
