"""Families with experts, latent attention or a state: tiny models on the meta device against what the facts count."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from onboard.arch.count import params
from onboard.arch.spec import ArchSpec
from onboard.facts.api import ModelFacts, read
from onboard.facts.families.table import FAMILIES

# Biases that only choose experts: a buffer in most families, a parameter in some; never counted.
CHOICE_BIASES = ("e_score_correction_bias", "expert_bias")
SMALL: dict[str, Any] = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 80}
HEADS = {**GROUPED, "head_dim": 16}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 2}
LATENT = {**SMALL, "num_key_value_heads": 4, "intermediate_size": 80, "kv_lora_rank": 20, "q_lora_rank": 28,
          "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}  # fmt: skip
INDEXED = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
          "linear_value_head_dim": 16}  # fmt: skip
MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
HYBRID = ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"]
SPARSE = ["dense", "sparse", "dense", "sparse", "sparse"]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("afmoe", {**HEADS, **EXPERTS, "num_shared_experts": 3, "num_dense_layers": 2}),
    ("afmoe", {**HEADS, **EXPERTS, "attention_bias": True, "mup_enabled": True, "tie_word_embeddings": True}),
    ("aria_text", {**GROUPED, "moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 3}),
    ("aria_text", {**HEADS, "moe_num_experts": 6, "attention_bias": True, "mlp_bias": True}),
    ("axk1", {**LATENT, **ROUTED, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 2}),
    ("axk1", {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1, "attention_bias": True}),
    ("axk2", {**LATENT, **ROUTED, **INDEXED, "gated_norm_rank": 4}),
    ("axk2", {**LATENT, **ROUTED, **INDEXED, "n_group": 4, "topk_group": 2, "attention_bias": True}),
    ("cohere2_moe", {**HEADS, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2}),
    ("cohere2_moe", {**HEADS, "num_experts": 6, "mlp_layer_types": SPARSE, "prefix_dense_intermediate_size": 64,
                     "rms_norm_eps": 1e-6, "expert_selection_fn": "sigmoid", "attention_bias": True}),
    ("dots1", {**HEADS, **ROUTED, "first_k_dense_replace": 1, "max_window_layers": 3}),
    ("dots1", {**HEADS, **ROUTED, "n_group": 4, "topk_group": 2, "attention_bias": True}),
    ("ernie4_5_moe", {**GROUPED, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24,
                      "moe_layer_end_index": 3, "moe_layer_interval": 2}),
    ("ernie4_5_moe", {**HEADS, "moe_num_experts": 6, "use_bias": True, "moe_num_shared_experts": 0,
                      "tie_word_embeddings": False}),
    ("exaone_moe", {**HEADS, **EXPERTS, "num_shared_experts": 2, "first_k_dense_replace": 2}),
    ("flex_olmo", {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}),
    ("granitemoe_swa", {**GROUPED, **LOCAL, "shared_intermediate_size": 56, "attention_bias": True,
                        "layer_rope_theta": [10000.0, 0.0, 500.0, 10000.0, 0.0]}),
    ("granitemoe_swa", {**GROUPED, **LOCAL, "layer_types": KINDS}),
    ("hunyuan_v1_moe", {**HEADS, "num_experts": 6, "moe_topk": [2, 1, 2, 3, 1], "attention_bias": True}),
    ("hy_v3", {**HEADS, **EXPERTS, "num_shared_experts": 2, "mlp_bias": True, "attention_bias": True}),
    ("hy_v3", {**HEADS, **EXPERTS, "mlp_layer_types": SPARSE}),
    ("hy_v4", {**LATENT, **ROUTED, **INDEXED, "hc_mult": 3, "attention_bias": True}),
    ("hy_v4", {**LATENT, **ROUTED, **INDEXED, "mlp_layer_types": SPARSE,
               "indexer_types": ["full", "shared", "full", "shared", "full"]}),
    ("jetmoe", {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 3,
                "kv_channels": 16, "intermediate_size": 40, **LOCAL}),
    ("laguna", {**HEADS, **EXPERTS, "shared_expert_intermediate_size": 40, "layer_types": KINDS,
                "num_attention_heads_per_layer": [4, 8, 8, 4, 6], "attention_bias": True}),
    ("laguna", {**HEADS, **EXPERTS, "gating": "per-channel", "moe_router_logit_softcapping": 3.0}),
    ("longcat_flash", {**{k: v for k, v in LATENT.items() if k not in ("num_hidden_layers", "intermediate_size")},
                       "num_layers": 2, "ffn_hidden_size": 80, "expert_ffn_hidden_size": 24, "n_routed_experts": 6,
                       "zero_expert_num": 3, "moe_topk": 2, "attention_bias": True}),
    ("mellum", {**HEADS, **EXPERTS, "layer_types": KINDS, "mlp_layer_types": SPARSE, "attention_bias": True}),
    ("mimo_v2_flash", {**HEADS, **EXPERTS, "n_routed_experts": 6, "head_dim": 24, "v_head_dim": 12,
                       "layer_types": KINDS, "attention_bias": True}),
    ("mimo_v2_flash", {**HEADS, "head_dim": 24, "n_routed_experts": 6, "num_experts_per_tok": 2,
                       "moe_intermediate_size": 24}),
    ("minimax_m3_vl_text", {**HEADS, **LOCAL, "dense_intermediate_size": 70, "shared_intermediate_size": 30,
                            "mlp_layer_types": SPARSE, "index_n_heads": 2, "index_head_dim": 16,
                            "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 2}),
    ("phimoe", {**GROUPED, **LOCAL, "attention_bias": True, "lm_head_bias": True}),
    ("solar_open", {**HEADS, **ROUTED, "attention_bias": True}),
    ("youtu", {**LATENT, "attention_bias": True}),
    ("youtu", {**LATENT, "q_lora_rank": None, "tie_word_embeddings": False}),
    ("minicpm3", {**LATENT, "attention_bias": True}),
    ("mixtral", {**HEADS, **LOCAL}),
    ("qwen2_moe", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    ("qwen3_moe", {**HEADS, **EXPERTS, "decoder_sparse_step": 2, "attention_bias": True}),
    ("olmoe", {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}),
    ("deepseek_v2", {**LATENT, **ROUTED, "first_k_dense_replace": 1, "attention_bias": True}),
    ("deepseek_v2", {**LATENT, **ROUTED, "q_lora_rank": None}),
    ("deepseek_v3", {**LATENT, **ROUTED, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 2}),
    ("deepseek_v32", {**LATENT, **ROUTED, **INDEXED, "n_group": 4, "topk_group": 2, "attention_bias": True}),
    ("glm4_moe", {**HEADS, **ROUTED, "use_qk_norm": True, "attention_bias": True}),
    ("glm4_moe_lite", {**LATENT, **ROUTED, "attention_bias": True}),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXED, "attention_bias": True}),
    ("minimax_m2", {**HEADS, **LOCAL}),
    ("gpt_oss", {**HEADS, **LOCAL}),
    ("granitemoe", {**GROUPED, **LOCAL, "attention_bias": True}),
    ("granitemoeshared", {**GROUPED, **LOCAL, "shared_intermediate_size": 56}),
    ("llama4_text", {**HEADS, **LOCAL, "intermediate_size_mlp": 60, "interleave_moe_layer_step": 2}),
    ("dbrx", {"vocab_size": 101, "d_model": 48, "n_heads": 4, "n_layers": 3,
              "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
              "ffn_config": {"hidden_size": 48, "ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 2}}),
    ("falcon_h1", {**GROUPED, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
                   "mamba_n_groups": 2, "mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True}),
    ("falcon_h1", {**HEADS, "mamba_d_ssm": None, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8,
                   "attention_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False}),
    ("falcon_mamba", {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "state_size": 8,
                      "time_step_rank": 5, "use_bias": True}),
    ("inkling_text", {**HEADS, **ROUTED, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 3,
                      "swa_head_dim": 12, "sliding_window_size": 8, "d_rel": 4, "rel_extent": 20,
                      "mlp_layer_types": SPARSE, "layer_types": ["hybrid", "hybrid_sliding"] * 2 + ["hybrid"]}),
    ("jamba", {**GROUPED, **MAMBA, "num_experts": 6, "mamba_dt_rank": 5, "attn_layer_period": 2,
               "attn_layer_offset": 1, "mamba_proj_bias": True}),
    ("kimi_linear", {**LATENT, "q_lora_rank": None, "num_experts": 8, "num_experts_per_token": 2,
                     "moe_intermediate_size": 24, "num_shared_experts": 2, "linear_head_dim": 12,
                     "linear_num_heads": 3}),
    ("minimax", {**HEADS, **LOCAL}),
    ("olmo_hybrid", {**GROUPED, **LINEAR, "attention_bias": True}),
    ("olmo_hybrid", {**GROUPED, "num_hidden_layers": 3}),
    ("qwen4_exp_text", {**HEADS, **LINEAR, **EXPERTS, "shared_expert_intermediate_size": 40, "hc_count": 2,
                        "hc_lowrank": 6, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
                        "indexer_budget": 8, "indexer_compress_ratio": 4}),
    ("recurrent_gemma", {**GROUPED, "lru_width": 56, "attention_bias": True}),
    ("recurrent_gemma", {**GROUPED, "num_key_value_heads": 1}),
    ("rwkv", {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "attention_hidden_size": 32,
              "intermediate_size": 80}),
    ("zamba", {**SMALL, **MAMBA, "intermediate_size": 80, "num_key_value_heads": 4, "mamba_dt_rank": 5,
               "n_mamba_heads": 2, "attention_head_dim": None, "attention_hidden_size": None,
               "layers_block_type": HYBRID}),
    ("zamba2", {**SMALL, **MAMBA, "intermediate_size": 80, "num_key_value_heads": 4, "n_mamba_heads": 4,
                "num_mem_blocks": 2, "adapter_rank": 3, "mamba_ngroups": 2, "layers_block_type": HYBRID}),
    ("zamba2", {**SMALL, **MAMBA, "intermediate_size": 80, "num_key_value_heads": 4, "n_mamba_heads": 4,
                "adapter_rank": 3, "use_shared_attention_adapter": True, "use_mem_rope": True,
                "layers_block_type": HYBRID, "add_bias_linear": True}),
    ("zaya", {**HEADS, **EXPERTS, "num_experts_per_tok": 1, "router_hidden_size": 10, "sliding_window": 8,
              "layer_types": ["hybrid", "hybrid_sliding"] * 2 + ["hybrid"], "attention_bias": True}),
]  # fmt: skip


def tiny(model_type: str, changes: dict[str, Any]) -> tuple[transformers.PretrainedConfig, ModelFacts]:
    config = CONFIG_MAPPING[model_type](**{"pad_token_id": None, **changes})
    return config, read(json.loads(config.to_json_string(use_diff=False)))


def counted(model_type: str, config: transformers.PretrainedConfig) -> int:
    """Parameters of transformers' own model, built without memory."""
    with torch.device("meta"):
        model = model_class(model_type)(config)
    total = sum(p.numel() for name, p in model.named_parameters() if not name.endswith(CHOICE_BIASES))
    if model_type == "longcat_flash":  # rows of the identity experts, which nothing reads
        total -= config.num_layers * config.zero_expert_num * 2 * config.expert_ffn_hidden_size * config.hidden_size
    return total


def model_class(model_type: str) -> Any:
    name = FAMILIES[model_type].class_name
    if hasattr(transformers, name):
        return getattr(transformers, name)
    module = model_type.removesuffix("_text")
    return getattr(getattr(transformers.models, module), name)


@pytest.mark.parametrize(("model_type", "changes"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_parameters_are_those_of_the_reference(model_type: str, changes: dict[str, Any]) -> None:
    config, facts = tiny(model_type, changes)
    assert facts.known
    assert params(facts.arch).total == counted(model_type, config)
    assert facts.unknown_keys == ()
    assert ArchSpec.from_json(facts.arch.to_json()) == facts.arch


def arch(model_type: str, **changes: Any) -> ArchSpec:
    base = next(case for name, case in CASES if name == model_type)
    return tiny(model_type, {**base, **changes})[1].arch


@pytest.mark.parametrize("model_type", sorted({name for name, _ in CASES}))
def test_what_a_spec_can_not_say_names_a_class_of_transformers(model_type: str) -> None:
    module = __import__(model_class(model_type).__module__, fromlist=["_"])
    for part in arch(model_type).beyond:
        assert hasattr(module, part.hf_class), part


def test_which_families_need_more_than_the_fields() -> None:
    whole = {name for name, _ in CASES if not arch(name).beyond and all(layer.state is None for layer in arch(name))}
    assert whole == {
        "afmoe", "aria_text", "axk1", "cohere2_moe", "dbrx", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1",
        "ernie4_5_moe", "exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoe",
        "granitemoe_swa", "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "laguna", "llama4_text", "mellum",
        "mimo_v2_flash", "minicpm3", "minimax_m2", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
        "solar_open", "youtu",
    }  # fmt: skip


def test_afmoe_gates_every_layer_and_turns_only_sliding_ones() -> None:
    spec = arch("afmoe", mup_enabled=True)
    found = [(a.kind, a.positions.kind, a.output_gate, a.gate_from, a.gate_act) for a in attentions(spec)]
    sliding, full = ("sliding", "rotary", "channel", "own", "sigmoid"), ("full", "none", "channel", "own", "sigmoid")
    assert found == [sliding, sliding, sliding, full, sliding]
    assert spec.embedding.multiplier == pytest.approx(48**0.5)


def attentions(spec: ArchSpec) -> list[Any]:
    return [layer.attention for layer in spec if layer.attention is not None]


def test_cohere2_moe_averages_or_sums() -> None:
    halved, summed = arch("cohere2_moe"), arch("cohere2_moe", shared_expert_combination_strategy="sum")
    assert [spec.layer(0).moe.output_scale for spec in (halved, summed)] == [0.5, 1.0]  # type: ignore[union-attr]
    assert [a.positions.kind for a in attentions(halved)] == ["rotary", "rotary", "rotary", "none", "rotary"]


def test_laguna_has_heads_gates_and_rope_of_its_own_in_each_kind() -> None:
    spec = arch("laguna")
    assert [a.heads for a in attentions(spec)] == [4, 8, 8, 4, 6]
    assert [a.positions.rotary_dim for a in attentions(spec)] == [8, 16, 16, 8, 16]
    assert {(a.output_gate, a.gate_act) for a in attentions(spec)} == {("head", "softplus")}
    capped = arch("laguna", moe_router_logit_softcapping=3.0).layer(1).moe
    assert capped is not None
    assert (capped.router.softcap, capped.router.correction_bias) == (3.0, True)


def test_mimo_v2_sliding_layers_have_sinks_and_twice_the_kv_heads() -> None:
    spec = arch("mimo_v2_flash")
    full, sliding = (2, False), (4, True)
    assert [(a.kv_heads, a.sinks) for a in attentions(spec)] == [full, sliding, sliding, full, sliding]
    assert {(a.value_scale, a.head_size_k, a.head_size_v) for a in attentions(spec)} == {(0.707, 24, 12)}


def test_granitemoe_swa_takes_a_base_for_each_layer() -> None:
    bases = [a.positions.base for a in attentions(arch("granitemoe_swa"))]
    assert bases == [10000.0, None, 500.0, 10000.0, None]


def test_phimoe_always_turns_by_short_factors() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.5] * 6, "long_factor": [4.0] * 6,
            "short_mscale": 1.25, "long_mscale": 1.25, "original_max_position_embeddings": 16}  # fmt: skip
    spec = arch("phimoe", rope_parameters=rope, router_jitter_noise=0.2)
    scaling = attentions(spec)[0].positions.scaling
    assert (scaling.factors_long, scaling.attention_factor) == ((1.5,) * 6, 1.25)
    moe = spec.layer(0).moe
    assert moe is not None
    assert (moe.router.score, moe.router.jitter) == ("sparsemixer", 0.2)
    other = arch("phimoe", rope_parameters={**rope, "long_mscale": 2.0})
    assert [part.feature for part in other.beyond] == ["rotary factor by sequence length"]


def test_deepseek_v2_keeps_the_sum_of_its_weights() -> None:
    facts = tiny("deepseek_v2", {**LATENT, **ROUTED, "norm_topk_prob": True})[1]
    moe = facts.arch.layer(1).moe
    assert moe is not None
    assert not moe.router.normalize
    assert any("norm_topk_prob" in note for note in facts.notes)


def test_longcat_puts_its_factors_into_scale_and_latent() -> None:
    spec = arch("longcat_flash")
    a = attentions(spec)[0]
    assert (spec.layers, [layer.moe is not None for layer in spec]) == (4, [True, False, True, False])
    assert a.scale == pytest.approx((48 / 28) ** 0.5 / 20**0.5)
    assert a.latent.kv_scale == pytest.approx((48 / 20) ** 0.5)


def test_zamba2_takes_its_shared_blocks_in_turn() -> None:
    spec = arch("zamba2")
    assert [layer.weights_of for layer in spec] == [None, None, None, None, 1]
    assert [layer.attention is not None for layer in spec] == [False, True, False, True, True]
    assert all(layer.state is not None for layer in spec)


def test_axk1_normalises_what_its_experts_give() -> None:
    assert [layer.norms.post_mlp is not None for layer in arch("axk1")] == [False, False, True, True, True]


def test_recurrent_gemma_rounds_its_multiplier() -> None:
    assert arch("recurrent_gemma", hidden_size=80).embedding.multiplier == 8.9375
