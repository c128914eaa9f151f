"""What a rendered package does not compute: settings are refused by name, features stand open in their own block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from onboard.facts import api
from onboard.probe.tiny import variants
from onboard.prove.package import Package
from onboard.prove.proof import Verdict
from onboard.prove.run import prove
from onboard.scaffold import render
from onboard.scaffold.code import ModelCode
from onboard.scaffold.tryout import temporary
from vllm_neuron.errors import UnsupportedError
from vllm_neuron.model.neuron_config import NeuronConfig

MODULE = "refusing_model"


def settings(model_type: str, **given: Any) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**given).to_dict()


@cache
def rendered(model_type: str) -> ModelCode:
    return render.model_code(api.read(settings(model_type), name=model_type), module=MODULE)


@contextmanager
def package(model_type: str) -> Iterator[Package]:
    with temporary(rendered(model_type), MODULE, model_type) as found:
        yield found


def tiny(model_type: str, **changed: Any) -> Any:
    base = variants(model_type)[0].config
    return type(base)(**{**base.to_dict(), **changed})


REFUSED = [
    ("gpt_neox", "use_parallel_residual", False),
    ("stablelm", "qk_layernorm", True),
    ("stablelm", "use_parallel_residual", True),
    ("gpt_bigcode", "multi_query", False),
    ("gpt_bigcode", "scale_attn_weights", False),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("llama", "residual_multiplier", 0.22),
    ("llama", "attn_logit_softcapping", 30.0),
    ("qwen2", "use_sliding_window", True),
    ("qwen2", "sliding_window", 8),
    ("gemma2", "use_bidirectional_attention", True),
]


@pytest.mark.parametrize(("model_type", "field", "value"), REFUSED)
def test_a_setting_that_the_code_was_not_made_for_is_refused(model_type, field, value):
    with package(model_type) as found:
        assert found.factory.from_configs(tiny(model_type), NeuronConfig())
        config = tiny(model_type)
        setattr(config, field, value)
        with pytest.raises(UnsupportedError, match=rf"config\.{field}: got {value!r}"):
            found.factory.from_configs(config, NeuronConfig())


def test_an_unknown_kind_of_layer_is_not_taken_for_another():
    with package("gemma2") as found:
        config = tiny("gemma2")
        config.layer_types = ["chunked_attention", *config.layer_types[1:]]
        with pytest.raises(UnsupportedError, match=r"config\.layer_types: got 'chunked_attention'"):
            found.factory.from_configs(config, NeuronConfig())


def test_other_rotary_settings_reach_the_model():
    with package("llama") as found:
        block = {"rope_type": "linear", "rope_theta": 77.0, "factor": 3.0}
        for parameters in ({"rope_type": "default", "rope_theta": 77.0}, block):
            model = found.factory.from_configs(tiny("llama"), NeuronConfig())
            rotary = model.CONFIG.from_configs(tiny("llama", rope_parameters=parameters), NeuronConfig()).rotary
            assert rotary.base == 77.0 and rotary.kind == parameters["rope_type"]


OPEN = [
    ("diffllama", "differential attention", "DiffLlamaAttention"),
    ("modernbert-decoder", "head MLP", "ModernBertDecoderPredictionHead"),
    ("mllama_text_model", "cross attention", "MllamaCrossAttentionDecoderLayer"),
]


@pytest.mark.parametrize(("model_type", "feature", "hf_class"), OPEN)
def test_an_open_feature_has_its_name_class_and_place(model_type, feature, hf_class):
    code = rendered(model_type)
    (one,) = [o for o in code.open if o.feature == feature]
    assert one.hf_class == hf_class and f".py:{one.source.rsplit(':', 1)[1]}" in one.source
    assert f'NotImplementedError(\n            "{feature}:' in code.model_py or f'Error("{feature}:' in code.model_py


def test_an_open_package_imports_and_its_other_blocks_are_proved(tmp_path: Path):
    """DiffLlama: its attention is open, all else is proved, and running it says what is missing."""
    code = rendered("diffllama")
    assert "class DiffLlamaAttn(Attention):" in code.model_py
    sources = tmp_path / "src" / MODULE
    sources.mkdir(parents=True)
    texts = {"__init__": "", "config": code.config_py, "model": code.model_py, "factory": code.factory_py}
    for name, text in texts.items():
        (sources / f"{name}.py").write_text(text)
    open_features = [
        {"feature": o.feature, "hf_class": o.hf_class, "source": o.source, "where": o.where} for o in code.open
    ]
    facts = {"architecture": code.class_name, "model_type": "diffllama", "open": open_features}
    (tmp_path / "onboard.json").write_text(json.dumps(facts))
    found = Package.load(tmp_path)
    proof = prove(found, variants("diffllama")[:1])
    assert proof.verdict is Verdict.OPEN
    passed = {check.what for check in proof.checks if check.status == "passed"}
    assert {"block layers.*.mlp", "block layers.*.attn_norm", "block head"} <= passed
    assert not [check for check in proof.checks if check.status == "failed"]
    model = found.factory.from_configs(tiny("diffllama"), NeuronConfig())
    with pytest.raises(NotImplementedError, match="differential attention"):
        model.layers[0].attn(torch.zeros(1, 96), None)
