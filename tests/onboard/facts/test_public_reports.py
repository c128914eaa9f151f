"""Faults that people met with other tools: the same input must read the same way, or be refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from onboard.arch.blocks import Attention, Positions
from onboard.arch.count import params
from onboard.facts.api import ModelFacts, read
from vllm_neuron.errors import ConfigError, UnsupportedError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 6,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}


def llama(**changes: Any) -> ModelFacts:
    return read({**LLAMA, **changes})


def attention(facts: ModelFacts, layer: int = 0) -> Attention:
    found = facts.arch.layer(layer).attention
    assert found is not None
    return found


def positions(facts: ModelFacts, layer: int = 0) -> Positions:
    return attention(facts, layer).positions


def mixers(facts: ModelFacts) -> list[str]:
    return [layer.mixer_kind for layer in facts.arch]


def test_A1_null_head_dim_is_the_derived_one() -> None:
    null, absent, given = llama(head_dim=None), llama(), llama(head_dim=128)
    assert null.arch == absent.arch == given.arch
    assert attention(null).head_size_k == 128
    kinds = [f.sources["attention.head_size_k"].kind for f in (null, absent, given)]
    assert kinds == ["null", "derived", "explicit"]


def test_A3_head_dim_decides_where_heads_do_not_divide() -> None:
    odd = {"hidden_size": 1792, "num_attention_heads": 24, "num_key_value_heads": 8}
    facts = llama(**odd, head_dim=128)
    a = attention(facts)
    assert (a.heads * a.head_size_k, a.kv_heads * a.head_size_k) == (3072, 1024)
    assert any("reference" in note for note in facts.notes)
    layer = params(llama(**odd, head_dim=128, num_hidden_layers=2).arch).total
    layer -= params(llama(**odd, head_dim=128, num_hidden_layers=1).arch).total
    assert layer == 2 * 3072 * 1792 + 2 * 1024 * 1792 + 3 * 1792 * 14336 + 2 * 1792
    with pytest.raises(ConfigError, match=r"1792.*24"):
        llama(**odd)


VL = {
    "model_type": "deepseek_vl_v2",
    "language_config": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "hidden_size": 1280,
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "num_experts_per_tok": 6,
    },
}


def test_A5_architectures_in_a_nested_section() -> None:
    facts = read(VL)
    assert (facts.section, facts.model_type) == ("language_config", "deepseek_v2")
    assert facts.architectures == ("DeepseekV2ForCausalLM",)
    assert facts.sources["hidden"].key == "language_config.hidden_size"
    assert any("language_config" in note for note in facts.notes)


def test_A5_no_architectures_anywhere() -> None:
    bare = {"language_config": {"hidden_size": 1280, "num_hidden_layers": 12, "num_attention_heads": 10}}
    with pytest.raises(ConfigError, match="architectures") as caught:
        read(bare, name="config.json")
    assert "language_config" in caught.value.action
    assert "--architecture" in caught.value.action
    assert read({**bare, "language_config": {**LLAMA, "architectures": None}}).model_type == "llama"
    sizes = {k: v for k, v in LLAMA.items() if k not in ("architectures", "model_type")}
    assert read(sizes, architecture="LlamaForCausalLM").arch == llama().arch


def test_A7_spellings_of_dtype() -> None:
    new, old, null, absent = (
        llama(dtype="bfloat16"),
        llama(torch_dtype="torch.bfloat16"),
        llama(dtype=None),
        llama(),
    )
    assert new.arch == old.arch
    assert new.arch.dtype == "bfloat16"
    assert null.arch.dtype is None
    assert absent.arch.dtype is None
    assert null.sources["dtype"].kind == "null"
    nested = read({"model_type": "llava", "text_config": {**LLAMA, "dtype": "bfloat16"}})
    assert nested.arch.dtype == "bfloat16"


def test_A7_contradicting_dtypes_name_the_winner() -> None:
    facts = llama(dtype="bfloat16", torch_dtype="float16")
    assert facts.arch.dtype == "bfloat16"
    assert any("torch_dtype=float16 contradicts dtype=bfloat16; dtype wins" in w for w in facts.warnings)


def test_A9_old_names_are_mapped() -> None:
    facts = read({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4})
    assert (facts.arch.hidden, facts.arch.layers, attention(facts).heads) == (4096, 32, 32)
    mlp = facts.arch.layer(0).mlp
    assert mlp is not None
    assert mlp.size == 4 * 4096
    assert positions(facts).kind == "alibi"
    assert facts.sources["hidden"].key == "d_model"


def gemma3(**changes: Any) -> ModelFacts:
    base = {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 512}
    return read({**base, **changes})


def test_A11_three_ways_to_say_the_pattern() -> None:
    by_pattern = gemma3(sliding_window_pattern=6)
    by_list = gemma3(layer_types=["sliding_attention"] * 5 + ["full_attention"])
    by_family = gemma3()
    assert by_pattern.arch == by_list.arch == by_family.arch
    assert mixers(by_family) == ["sliding"] * 5 + ["full"]
    kinds = [f.sources["layers.kinds"].kind for f in (by_pattern, by_list, by_family)]
    assert kinds == ["explicit", "explicit", "family"]


def test_C11_qwen2_biases_are_not_in_the_config() -> None:
    a = attention(read({**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}))
    assert (a.q_bias, a.k_bias, a.v_bias, a.o_bias) == (True, True, True, False)
    b = attention(llama())
    assert (b.q_bias, b.k_bias, b.v_bias, b.o_bias) == (False, False, False, False)


def test_E1_two_generations_of_rotary_settings() -> None:
    old = llama(rope_theta=1000000, rope_scaling=None)
    new = llama(rope_parameters={"rope_type": "default", "rope_theta": 1000000})
    assert old.arch == new.arch
    assert positions(new).base == 1e6
    assert old.sources["attention.positions.base"].key == "rope_theta"
    assert new.sources["attention.positions.base"].key == "rope_parameters"


def test_E3_one_block_for_each_layer_type() -> None:
    types = ["sliding_attention", "full_attention"]
    new = gemma3(
        num_hidden_layers=2,
        layer_types=types,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
            "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1000000},
        },
    )
    old = gemma3(
        num_hidden_layers=2,
        layer_types=types,
        rope_local_base_freq=10000,
        rope_theta=1000000,
        rope_scaling={"rope_type": "linear", "factor": 8},
    )
    assert new.arch == old.arch
    assert (positions(new, 0).base, positions(new, 0).scaling) == (1e4, None)
    scaled = positions(new, 1)
    assert scaled.base == 1e6
    assert scaled.scaling is not None
    assert (scaled.scaling.kind, scaled.scaling.factor) == ("linear", 8.0)


@pytest.mark.parametrize(
    ("settings", "dim"),
    [
        ({"partial_rotary_factor": 0.5}, 64),
        ({"rotary_dim": 64}, 64),
        ({"partial_rotary_factor": 0.5, "rotary_dim": 64}, 64),
        ({}, 128),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, 64),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.5}, 64),
    ],
)
def test_E5_partial_rotary_is_applied_once(settings: dict[str, Any], dim: int) -> None:
    facts = llama(**settings)
    assert positions(facts).rotary_dim == dim
    assert not facts.warnings


def test_E5_conflict_names_the_winner() -> None:
    facts = llama(rotary_dim=64, partial_rotary_factor=0.25)
    assert positions(facts).rotary_dim == 64
    assert any("conflict" in w and "rotary_dim wins" in w for w in facts.warnings)


def test_E7_proportional_rope_divides_by_the_whole_head() -> None:
    from onboard.facts.api import load

    full = next(k.attention for k in load("google/gemma-4-31B-it").arch.kinds if k.mixer_kind == "full")
    assert full is not None
    p = full.positions
    assert p.scaling is not None
    assert (p.scaling.kind, p.rotary_dim, p.frequency_dim, p.base) == ("proportional", 128, 512, 1e6)
    assert p.base is not None
    assert p.frequency_dim is not None
    assert p.base ** (-2 * 63 / p.frequency_dim) == pytest.approx(0.03338, rel=1e-3)


def test_E7_a_rope_type_that_is_not_known_stops() -> None:
    for settings in ({"rope_scaling": {"type": "spiral", "factor": 2}}, {"rope_parameters": {"rope_type": "spiral"}}):
        with pytest.raises(UnsupportedError, match="spiral"):
            llama(**settings)


def test_F1_a_window_that_is_switched_off() -> None:
    off = {"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 28, "num_hidden_layers": 28}
    windowed = read({**off, "sliding_window": 4096})
    assert mixers(windowed) == ["full"] * 28
    assert windowed.arch == read(off).arch
    on = read({**off, "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20})
    assert mixers(on) == ["full"] * 20 + ["sliding"] * 8


@pytest.mark.parametrize("listed", [[], None, [1, 1, 1, 0, 1, 1, 1, 0]])
def test_F7_the_list_named_no_rope_holds_one_where_rope_is_used(listed: list[int] | None) -> None:
    facts = read(
        {
            "model_type": "llama4_text",
            "num_hidden_layers": 8,
            "no_rope_layers": listed,
            "no_rope_layer_interval": 4,
            "attention_chunk_size": 8192,
        }
    )
    assert mixers(facts) == ["chunked", "chunked", "chunked", "full"] * 2
    assert [positions(facts, i).kind for i in range(8)] == (["rotary"] * 3 + ["none"]) * 2
    assert attention(facts, 0).chunk == 8192
    assert attention(facts, 3).chunk is None


def test_G1_norm_of_q_and_k_comes_before_rope_in_qwen3() -> None:
    facts = read({**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128})
    found = attention(facts).qk_norm
    assert found is not None
    assert (found.place, found.width) == ("before_rope", "head")
    assert facts.sources["attention.qk_norm"].kind == "family"
    assert attention(llama()).qk_norm is None


def test_G3_the_input_is_scaled_and_the_logits_are_not() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    capped = read({"model_type": "gemma2", **sizes, "tie_word_embeddings": True, "final_logit_softcapping": 30.0})
    assert capped.arch.embedding.multiplier == 8.0
    assert (capped.arch.head.multiplier, capped.arch.head.tied, capped.arch.head.softcap) == (1.0, True, 30.0)
    free = read({"model_type": "gemma2", **sizes, "final_logit_softcapping": None})
    assert free.arch.head.softcap is None


def test_G3_granite_multipliers() -> None:
    from onboard.facts.api import load

    arch = load("ibm-granite/granite-3.3-8b-instruct").arch
    assert (arch.embedding.multiplier, arch.layer(0).residual_scale) == (12.0, 0.22)
    assert arch.head.multiplier == 1 / 16
    block = arch.layer(0).attention
    assert block is not None
    assert block.scale == 0.0078125
