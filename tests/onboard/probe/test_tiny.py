"""Tiny configs keep the choices of the config that they are made from."""

from __future__ import annotations

import pytest

from onboard.probe.tiny import variants
from vllm_neuron.errors import ConfigError


def test_base_keeps_what_a_real_config_chose() -> None:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    given = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "rms_norm_eps": 3e-5,
        "attention_bias": True,
        "rope_parameters": {**rope, "original_max_position_embeddings": 8192},
    }
    config = variants("llama", given)[0].config
    assert config.rms_norm_eps == 3e-5 and config.attention_bias and config.hidden_size < 200
    assert config.rope_parameters["rope_type"] == "llama3" and config.rope_parameters["rope_theta"] == 5e5
    assert config.rope_parameters["original_max_position_embeddings"] == 32 < config.max_position_embeddings
    assert config.num_attention_heads > config.num_key_value_heads > 1


def test_each_kind_of_layer_is_there_and_windows_bite() -> None:
    config = variants("gemma3_text")[0].config
    assert set(config.layer_types) == {"sliding_attention", "full_attention"} and config.num_hidden_layers <= 8
    assert config.sliding_window == 8


def test_variants_turn_over_one_option_each() -> None:
    found = variants("llama")
    assert found[0].name == "base"
    base = found[0].config
    for variant in found[1:]:
        differ = {k for k, v in variant.config.to_dict().items() if v != base.to_dict().get(k)}
        assert len(differ) == 1, (variant.name, differ)


def test_an_unknown_model_type_and_a_wrong_config_are_refused() -> None:
    with pytest.raises(ConfigError, match="model_type"):
        variants("no_such_model")
    with pytest.raises(ConfigError, match="config"):
        variants("llama", {"hidden_size": "many"})
