"""Damaged configs: an error of ours with field and value, or a diff that every view can show."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onboard.diff import diff
from onboard.diff.inspect import inspect
from onboard.facts.api import load, read
from onboard.report import diff_html, diff_markdown, inspect_html
from onboard.report.diff_text import show
from onboard.report.terminal import console
from vllm_neuron.errors import NeuronError

BASES: tuple[dict[str, Any], ...] = (
    {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
     "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
     "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192}},
    {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4,
        "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}},
    {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 128, "num_hidden_layers": 4,
     "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 128, "kv_lora_rank": 32,
     "num_hidden_layers": 4, "num_attention_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8},
    {"architectures": ["NobodyKnowsForCausalLM"], "model_type": "nobody_knows", "hidden_size": 128,
     "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 100},
)  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 64), st.floats(), st.text(max_size=6),
    *[st.sampled_from([1, 2, 4, 8, 64, 128, 0.5, 1e4, "silu", "gelu", "relu2", True, False, None])] * 5,
    st.lists(st.one_of(st.integers(-1, 9), st.text(max_size=3), st.none()), max_size=5),
    st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.none()), max_size=2),
)  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config = copy.deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 2))):
        part = config
        if isinstance(config.get("text_config"), dict) and draw(st.booleans()):
            part = config["text_config"]
        key = draw(st.sampled_from([*part, "sliding_window", "head_dim", "rope_parameters"]))
        part[key] = draw(VALUES)
    return config


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs())
def test_damaged_configs(config: dict[str, Any]) -> None:
    try:
        facts = read(config, name="damaged")
    except NeuronError as error:
        assert error.field and error.expected
        return
    base = load("meta-llama/Llama-3.1-8B")
    for found in (diff(base, facts), diff(facts, base, target="a", spelling=True)):
        json.dumps(found.to_json(), allow_nan=False)
        diff_html.render(found).encode()
        diff_markdown.render(found).encode()
        for row in found.rows:
            assert row.kind == "spelling" or (row.covered_by is None) == (row.missing is not None)
    assert diff(facts, facts).rows == ()
    out = console(to_file=True)
    show(diff(base, facts), out)
    json.dumps(inspect(facts).to_json(), allow_nan=False)
    inspect_html.render(inspect(facts)).encode()
