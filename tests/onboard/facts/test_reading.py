"""Nested sections, spellings, overrides, contradictions and unknown types."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onboard import catalog
from onboard.facts.api import ModelFacts, load, read
from onboard.facts.families.table import FAMILIES
from onboard.facts.spellings import SPELLINGS
from vllm_neuron.errors import ConfigError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
CANONICAL = {s: key for key, spellings in SPELLINGS.items() for s in spellings}


@pytest.mark.parametrize("key", [k for k in LLAMA if k not in ("model_type", "architectures")])
def test_every_spelling_of_a_setting_reads_the_same(key: str) -> None:
    expected = read(LLAMA).arch
    for spelling in SPELLINGS[CANONICAL[key]]:
        config = {k: v for k, v in LLAMA.items() if k != key}
        inner: Any = config
        *outer, last = spelling.split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = LLAMA[key]
        facts = read(config)
        assert facts.arch == expected, spelling
        assert not facts.warnings, spelling


@pytest.mark.parametrize(
    "path",
    [
        ("text_config",),
        ("language_config",),
        ("llm_config",),
        ("thinker_config", "text_config"),
        ("language_model_config",),
    ],
)
def test_nested_sections(path: tuple[str, ...]) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(path):
        config = {key: config}
    facts = read({"model_type": "some_vl", **config, "vision_config": {"hidden_size": 32, "depth": 3}})
    plain = read(LLAMA).arch
    assert dataclasses.replace(facts.arch, towers=()) == plain
    assert facts.section == ".".join(path)
    assert facts.sources["hidden"].key == ".".join((*path, "hidden_size"))
    (tower,) = facts.arch.towers
    assert (tower.name, tower.hidden, tower.layers, tower.params) == ("vision", 32, 3, None)


@pytest.mark.parametrize("name", catalog.names())
def test_the_catalog_and_a_config_with_its_values_agree(name: str) -> None:
    entry = catalog.entry(name)
    inner: dict[str, Any] = {"model_type": entry.model_type, **entry.fields}
    config: dict[str, Any] = {"architectures": list(entry.architectures)}
    config.update({entry.section: inner} if entry.section else inner)
    facts = read(config)
    assert facts.arch == dataclasses.replace(load(name).arch, towers=())


def test_top_level_tie_counts_where_the_section_is_silent() -> None:
    inner = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}
    outside = read({"text_config": inner, "tie_word_embeddings": True})
    assert outside.arch.head.tied
    assert outside.sources["head.tied"].key == "tie_word_embeddings"
    both = read({"text_config": {**inner, "tie_word_embeddings": False}, "tie_word_embeddings": True})
    assert not both.arch.head.tied
    assert any("tie_word_embeddings=True at the top contradicts False" in w for w in both.warnings)


def test_contradictions_name_the_winner() -> None:
    facts = read({**LLAMA, "n_layer": 7})
    assert facts.arch.layers == 4
    assert any("n_layer=7 contradicts num_hidden_layers=4; num_hidden_layers wins" in w for w in facts.warnings)
    theta = read({**LLAMA, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})
    block = theta.arch.layer(0).attention
    assert block is not None
    assert block.positions.base == 1e6
    assert any("contradicts" in w and "rope_parameters wins" in w for w in theta.warnings)


def test_null_is_not_the_default() -> None:
    base = {"model_type": "mistral", "num_hidden_layers": 2}
    default, null = read(base), read({**base, "sliding_window": None})
    assert [k.mixer_kind for k in default.arch.kinds] == ["sliding"]
    assert [k.mixer_kind for k in null.arch.kinds] == ["full"]


GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
}


def test_two_ways_to_say_that_layers_differ() -> None:
    by_name = read({**GEMMA4, "global_head_dim": 512, "num_global_key_value_heads": 2})
    table = {"05": {"head_dim": 512, "num_key_value_heads": 2}, "11": {"num_key_value_heads": 2, "head_dim": 512}}
    by_layer = read({**GEMMA4, "per_layer_config": table})
    assert by_name.arch == by_layer.arch
    assert len(by_layer.arch.kinds) == 2
    full = by_layer.arch.layer(5).attention
    assert full is not None
    assert (full.head_size_k, full.kv_heads, full.k_eq_v) == (512, 2, True)


@pytest.mark.parametrize("table", [{"12": {}}, {"x": {}}, {"0": 3}, [1], {"1": {}, "01": {}}, {"-1": {}}])
def test_overrides_of_layers_that_do_not_exist(table: Any) -> None:
    with pytest.raises(ConfigError, match="per_layer_config"):
        read({**GEMMA4, "per_layer_config": table})


def test_shared_caches_name_their_source() -> None:
    arch = load("google/gemma-4-E2B-it").arch
    shared = {i: layer.attention.shared_kv for i, layer in enumerate(arch) if layer.attention}
    assert all(shared[i] is None for i in range(15))
    assert {shared[i] for i in range(15, 35)} == {13, 14}
    assert arch.layer(14).mixer_kind == arch.layer(19).mixer_kind == "full"
    assert shared[19] == 14


def unknown(**changes: Any) -> ModelFacts:
    return read({**LLAMA, "model_type": "frobnicate", "architectures": ["FrobnicateForCausalLM"], **changes})


def test_an_unknown_type_is_read_raw_and_says_what_it_did_not_understand() -> None:
    facts = unknown(frob_factor=3, switched_off=False)
    assert facts.unknown_keys == ("frob_factor",)
    text = " ".join(facts.warnings)
    assert "'frobnicate' is not known" in text
    assert "not understood: frob_factor" in text
    assert facts.sources["norms.places"].kind == "assumed"
    assert facts.sources["hidden"].kind == "explicit"
    assert facts.arch.hidden == 256


def test_an_unknown_type_keeps_what_its_keys_say() -> None:
    facts = unknown(num_local_experts=8, num_experts_per_tok=2, sliding_window=128, sliding_window_pattern=2)
    assert [layer.mixer_kind for layer in facts.arch] == ["sliding", "full"] * 2
    experts = facts.arch.layer(0).moe
    assert experts is not None
    assert (experts.experts, experts.top_k) == (8, 2)


def test_unknown_sizes_are_not_guessed() -> None:
    with pytest.raises(ConfigError, match="intermediate_size"):
        unknown(intermediate_size=None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["odd"] * 4}, "layer_types"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"architectures": [3]}, "architectures"),
        ({"architectures": {}}, "architectures"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope_scaling"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}, "rope_scaling"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": 16}, "torch_dtype"),
    ],
)
def test_wrong_values_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**LLAMA, **changes})
    assert caught.value.field == field


def test_more_experts_chosen_than_there_are() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok"):
        read({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3})


def test_falcon_kv_heads_follow_its_switches() -> None:
    def kv_heads(**changes: Any) -> int:
        block = read({"model_type": "falcon", "num_attention_heads": 71, **changes}).arch.layer(0).attention
        assert block is not None
        return block.kv_heads

    assert kv_heads(num_kv_heads=71, multi_query=True) == 1
    assert kv_heads(multi_query=False) == 71
    assert kv_heads(num_attention_heads=64, hidden_size=4096, new_decoder_architecture=True, num_kv_heads=8) == 8


def test_baichuan_positions_and_head() -> None:
    small = {"model_type": "baichuan", "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 64}
    seven = read({**small, "hidden_size": 4096, "vocab_size": 125_696}).arch
    thirteen = read({**small, "hidden_size": 5120, "vocab_size": 64_000}).arch
    kinds = [a.layer(0).attention for a in (seven, thirteen)]
    assert [k.positions.kind for k in kinds if k] == ["rotary", "alibi"]
    assert (seven.head.normalized, thirteen.head.normalized) == (True, False)


# What a family's own reference asks for as well in so small a config.
NEEDED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [5, 5, 6]}},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "hrm_text": {"num_layers_per_stack": 2},
    "hunyuan_v1_moe": {"num_experts": 4},
    "longcat_flash": {"num_hidden_layers": 2},
    "mimo_v2_flash": {"num_key_value_heads": 4},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_every_family_reads(model_type: str) -> None:
    needed: dict[str, Any] = {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 500,
        "intermediate_size": 512,
        "head_dim": 32,
        "num_experts_per_tok": 2,
        "hybrid_override_pattern": "M*-E",
        "num_heads": 8,
        "expand": 1,
    }
    if model_type == "deepseek_v4":
        needed["num_key_value_heads"] = 1
    if model_type == "lfm2_moe":
        needed["layer_types"] = ["conv", "conv", "full_attention", "conv"]
    needed |= NEEDED.get(model_type, {})
    facts = read({"model_type": model_type, **needed})
    assert facts.arch.layers == 4
    assert facts.architectures == (FAMILIES[model_type].class_name,)
    assert all(s.kind != "assumed" for s in facts.sources.values())


def test_how_weights_are_stored() -> None:
    assert read(LLAMA).quantization is None
    assert read({**LLAMA, "quantization_config": {"quant_method": "fp8", "bits": 8}}).quantization == "fp8"
    assert read({**LLAMA, "quantization_config": {"bits": 4}}).quantization == "unnamed"
    assert read({"text_config": {**LLAMA, "quantization_config": {"quant_method": "awq"}}}).quantization == "awq"
    assert load("openai/gpt-oss-20b").quantization == "mxfp4"
    assert load("deepseek-ai/DeepSeek-V3").quantization == "fp8"


def test_an_unknown_type_that_is_too_strange_says_so() -> None:
    with pytest.raises(ConfigError) as caught:
        read({"model_type": "wkv", "architectures": ["WkvForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
              "attention_hidden_size": 64, "vocab_size": 10})  # fmt: skip
    assert caught.value.field == "num_attention_heads"
    assert "'wkv' is not known" in caught.value.action
    assert "attention_hidden_size" in caught.value.action


KYUTAI = {"model_type": "kyutai_speech_to_text", "architectures": ["KyutaiSpeechToTextForConditionalGeneration"]}


def test_defaults_of_an_installed_transformers_stand_in_for_a_type_that_it_knows() -> None:
    pytest.importorskip("transformers")
    facts = read({**KYUTAI, "num_hidden_layers": 4})
    assert not facts.known
    assert any("come from the installed transformers" in note for note in facts.notes)
    assert facts.sources["hidden"].kind == "family"
    assert facts.arch.layers == 4


def test_without_transformers_nothing_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from onboard.facts import unknown as room

    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="hidden_size"):
        read({**KYUTAI, "num_hidden_layers": 4})


def test_counts_of_a_type_that_is_not_known_are_marked() -> None:
    assert read(LLAMA).known
    assert not unknown().known
