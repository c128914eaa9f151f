"""Thousands of damaged configs: an error of ours with field and value, or a sound answer; never a traceback."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onboard import catalog
from onboard.arch import count
from onboard.arch.spec import ArchSpec
from onboard.facts import rawjson
from onboard.facts.api import read
from onboard.facts.spellings import SPELLINGS
from vllm_neuron.errors import NeuronError

MODELS = (
    "meta-llama/Llama-3.1-8B", "google/gemma-4-31B-it", "google/gemma-4-E2B-it", "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen2.5-7B", "Qwen/Qwen3.5-397B-A17B", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "NX-AI/xLSTM-7b",
    "LiquidAI/LFM2.5-VL-1.6B", "openai/gpt-oss-20b", "openai-community/gpt2", "tiiuae/falcon-7b", "zai-org/GLM-5.2",
    "meta-llama/Llama-4-Scout-17B-16E", "microsoft/Phi-3.5-mini-instruct", "CohereLabs/c4ai-command-r7b-12-2024",
    "THUDM/glm-4-9b", "EleutherAI/pythia-1b",
)  # fmt: skip


def config(name: str) -> dict[str, Any]:
    entry = catalog.entry(name)
    inner = {"model_type": entry.model_type, **entry.fields}
    outer = {"architectures": list(entry.architectures)}
    return {**outer, entry.section: inner} if entry.section else {**outer, **inner}


CONFIGS = [config(name) for name in MODELS]
CONFIGS += [{"model_type": t} for t in ("mpt", "bloom", "mamba", "mamba2", "gptj", "gpt_bigcode", "dbrx", "olmoe")]
CONFIGS.append({**config("meta-llama/Llama-3.1-8B"), "model_type": "never_heard_of_it"})
KEYS = sorted(
    {s for spellings in SPELLINGS.values() for s in spellings if "." not in s}
    | {"rope_scaling", "rope_parameters", "per_layer_config", "no_rope_layers", "text_config", "vision_config",
       "use_sliding_window", "rope_local_base_freq", "mlp_layer_types", "rotary_dim", "architectures", "model_type",
       "language_config", "compress_rates", "attn_config", "moe_layer_freq", "is_encoder_decoder"}
)  # fmt: skip

numbers = st.one_of(
    st.integers(-3, 70), st.sampled_from([2**31, 2**63, 10**30, 10**400, 100_000]), st.floats(allow_subnormal=True)
)
names = st.sampled_from(
    ["full_attention", "sliding_attention", "yarn", "llama3", "silu", "auto", "é\U0001f600", "x\x00"]
)
scalars = st.one_of(st.none(), st.booleans(), numbers, names, st.text(max_size=8))
inner_keys = st.one_of(st.sampled_from(["rope_type", "factor", "0", "1", "rope_theta"]), st.text(max_size=4))
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(inner_keys, inner, max_size=4),
    ),
    max_leaves=8,
)  # fmt: skip


def paths(value: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    out = []
    for key, inner in value.items():
        out.append((*prefix, key))
        if isinstance(inner, dict):
            out += paths(inner, (*prefix, key))
    return out


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    value = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        section = value["text_config"] if isinstance(value.get("text_config"), dict) else value
        if draw(st.booleans()):
            section[draw(st.sampled_from(KEYS))] = draw(junk)
            continue
        path = draw(st.sampled_from(paths(value) or [("model_type",)]))
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        if draw(st.integers(0, 5)) == 0:
            inner.pop(path[-1], None)
        else:
            inner[path[-1]] = draw(junk)
    return value


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_damaged_configs(raw: dict[str, Any]) -> None:
    try:
        facts = read(raw)
    except NeuronError as error:
        assert error.field
        assert error.expected
        assert len(str(error)) < 2000
        return
    arch = facts.arch
    numbers = count.params(arch)
    assert numbers.total > 0
    assert numbers.active >= 0
    assert count.kv_bytes_per_token(arch) >= 0
    assert count.state_bytes(arch) >= 0
    assert count.flops_per_token(arch, 100) > 0
    text = json.dumps(arch.to_json(), allow_nan=False)
    assert ArchSpec.from_json(json.loads(text)) == arch
    " ".join((*facts.warnings, *facts.notes)).encode("utf-8", errors="replace")


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(st.sampled_from(CONFIGS))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    try:
        read(rawjson.parse(bytes(text), "config.json"))
    except NeuronError as error:
        assert error.field


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    try:
        read(rawjson.parse(data, "config.json"))
    except NeuronError as error:
        assert error.field
