"""What a config asks for and the model does not compute is refused by name, never left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_models.gemma3.config import Gemma3Config
from reference_models.llama3.config import LlamaConfig
from reference_models.llama3.model import Llama
from tests.support.hf import MODELS
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.neuron_config import NeuronConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partial_rotary_factor", 0.5),
        ("embedding_multiplier", 12.0),
        ("residual_multiplier", 0.22),
        ("logit_scale", 0.1),
        ("final_logit_softcapping", 30.0),
        ("qk_norm", True),
        ("pretraining_tp", 2),
    ],
)
def test_a_config_that_only_looks_like_llama(name: str, value: Any) -> None:
    config = MODELS["llama"].config()
    setattr(config, name, value)
    with pytest.raises(UnsupportedError, match=name):
        LlamaConfig.from_configs(config, NeuronConfig())


def test_partial_rotary_inside_the_rope_block() -> None:
    """transformers' Llama turns the whole head whatever the block says; so must we, or refuse."""
    config = MODELS["llama"].config()
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    with pytest.raises(UnsupportedError, match="partial_rotary_factor"):
        LlamaConfig.from_configs(config, NeuronConfig())


@pytest.mark.parametrize(("name", "value"), [("attn_logit_softcapping", 50.0), ("use_bidirectional_attention", True)])
def test_gemma3_options(name: str, value: Any) -> None:
    config = MODELS["gemma3"].config()
    setattr(config, name, value)
    with pytest.raises(UnsupportedError, match=name):
        Gemma3Config.from_configs(config, NeuronConfig())


def test_rope_types_that_have_no_table() -> None:
    config = MODELS["llama"].config()
    config.rope_parameters = {"rope_type": "by_parts", "rope_theta": 1e4, "factor": 4.0}
    with pytest.raises(UnsupportedError, match=r"rope_type.*by_parts"):
        LlamaConfig.from_configs(config, NeuronConfig())


def test_weights_of_another_dtype_than_the_model_was_built_for(tmp_path: Any) -> None:
    MODELS["llama"].save(tmp_path)
    model = Llama.from_configs(MODELS["llama"].config(), NeuronConfig())
    with pytest.raises(ConfigError, match="built for"):
        model.load_weights(tmp_path, torch.bfloat16, progress=False)
