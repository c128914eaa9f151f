"""Fields that differ by layer, and layers that read another's cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig, LlamaConfig
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError

from onboard.facts.families.gemma4 import cache_of
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.hf_config import per_layer, shared_kv_layers

S, F = "sliding_attention", "full_attention"


def gemma(**changed: Any) -> Any:
    return AutoConfig.for_model(
        "gemma4_text",
        num_hidden_layers=3,
        layer_types=[S, F, F],
        head_dim=8,
        global_head_dim=16,
        num_key_value_heads=4,
        **changed,
    )


def test_a_field_that_differs_by_layer() -> None:
    config = gemma(attention_k_eq_v=True, num_global_key_value_heads=2)
    with pytest.raises(AmbiguousGlobalPerLayerAttributeError):
        _ = config.head_dim
    assert per_layer(config, "head_dim") == (8, 16, 16)
    assert per_layer(config, "num_key_value_heads") == (4, 2, 2)
    assert per_layer(config, "hidden_size") == (config.hidden_size,) * 3


def test_a_field_of_a_config_without_overrides_is_repeated() -> None:
    assert per_layer(LlamaConfig(num_hidden_layers=2, num_key_value_heads=4), "num_key_value_heads") == (4, 4)
    assert per_layer(SimpleNamespace(num_hidden_layers=2, head_dim=6), "head_dim") == (6, 6)


@pytest.mark.parametrize("name", ["num_experts", "no_such_field"])
def test_a_field_that_is_null_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        per_layer(gemma(), name)


@pytest.mark.parametrize("shared", range(7))
def test_sources_of_shared_caches_are_those_of_the_facts(shared: int) -> None:
    types = [S, F, S, S, F, S, F]
    wanted = tuple(cache_of(types, i, len(types) - shared) for i in range(len(types)))
    if shared == 6:
        with pytest.raises(ConfigError, match="full_attention"):
            shared_kv_layers(types, shared)
        return
    assert shared_kv_layers(types, shared) == wanted


def test_shared_caches_of_the_last_layers() -> None:
    assert shared_kv_layers([S, F, S, S, F, S, F], 3) == (None, None, None, None, 1, 3, 1)
    assert shared_kv_layers([S, F], 0) == (None, None)


@pytest.mark.parametrize("shared", [-1, 2, 3])
def test_more_shared_caches_than_layers_are_refused(shared: int) -> None:
    with pytest.raises(ConfigError, match="num_kv_shared_layers"):
        shared_kv_layers([S, F], shared)
