"""Settings of rotary tables drawn at random against transformers, and those that make no sense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, PhimoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from vllm_neuron.errors import ConfigError
from vllm_neuron.nn import Rotary, RotaryConfig

Block = dict[str, Any]
FACTOR, BASE = st.floats(1.0, 64.0), st.floats(100.0, 5e6)
ORIGINAL = st.integers(16, 8192)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, int, int]:
    """A block of settings, the head's size, and the positions of the model."""
    kind = draw(st.sampled_from(sorted(ROPE_INIT_FUNCTIONS)))
    size, share = 2 * draw(st.integers(2, 32)), 1.0
    original = draw(ORIGINAL)
    block: Block = {"rope_type": kind, "rope_theta": draw(BASE), "factor": draw(FACTOR)}
    if kind in ("llama3", "yarn", "longrope"):
        block["original_max_position_embeddings"] = original
    if kind == "llama3":
        low = draw(st.floats(0.5, 4.0))
        block |= {"low_freq_factor": low, "high_freq_factor": low + draw(st.floats(0.5, 8.0))}
    if kind in ("linear", "yarn", "proportional") and draw(st.booleans()):
        share = 0.5 if size % 4 == 0 else 1.0
        block["partial_rotary_factor"] = share
    if kind == "yarn":
        block |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "beta_fast": st.floats(8.0, 64.0),
                    "beta_slow": st.floats(0.5, 4.0),
                    "truncate": st.booleans(),
                    "mscale": st.floats(0.1, 2.0),
                    "mscale_all_dim": st.floats(0.1, 2.0),
                    "attention_factor": st.floats(0.5, 2.0),
                },
            )
        )
    if kind == "longrope":
        lists = st.lists(st.floats(1.0, 50.0), min_size=size // 2, max_size=size // 2)
        block |= {"short_factor": draw(lists), "long_factor": draw(lists)}
        if draw(st.booleans()):
            del block["factor"]
    return block, size, original * draw(st.integers(1, 4))


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_frequencies_and_size_are_those_of_transformers(drawn: tuple[Block, int, int]) -> None:
    block, size, positions = drawn
    config = LlamaConfig(
        hidden_size=4 * size,
        num_attention_heads=4,
        head_dim=size,
        max_position_embeddings=positions,
        rope_parameters=dict(block),
    )
    length = positions if block["rope_type"] == "longrope" else None
    theirs, attention_factor = ROPE_INIT_FUNCTIONS[block["rope_type"]](config, seq_len=length)
    ours = RotaryConfig.from_parameters(block, size, positions)
    torch.testing.assert_close(ours.inverse_frequencies(), theirs, rtol=1e-6, atol=0.0)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-9)


@pytest.mark.parametrize("tokens", [32, 96])
def test_phimoe_takes_its_own_sizes_and_the_short_factors_at_any_length(tokens: int) -> None:
    block: Block = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.7 * i for i in range(8)],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
    }
    config = PhimoeConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=96, rope_parameters=dict(block)
    )  # fmt: skip
    cos, sin = PhimoeRotaryEmbedding(config)(torch.empty(0), torch.arange(tokens)[None])
    rotary = Rotary(RotaryConfig.from_parameters(block, 16, 96))
    rotary.limit(tokens)
    rotary.build(torch.float32, torch.device("cpu"))
    torch.testing.assert_close(rotary.table[:, :16], cos[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(rotary.table[:, 24:], sin[0, :, 8:], rtol=1e-6, atol=1e-6)
    del block["long_mscale"]
    with pytest.raises(ConfigError, match="long_mscale"):
        RotaryConfig.from_parameters(block, 16, tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 8.0}, "factor.*kind default does not take it"),
        ({"kind": "dynamic", "factor": 8.0}, "kind dynamic does not take it"),
        ({"kind": "linear", "factor": 2.0, "beta_fast": 8.0}, "beta_fast.*kind linear"),
        ({"kind": "yarn", "factor": 2.0}, "original_max_position.*positive"),
        ({"kind": "linear", "factor": 0.0}, "factor.*positive"),
        ({"kind": "linear", "factor": float("nan")}, "factor.*positive"),
        ({"base": 0.0}, "base.*positive"),
        ({"max_position": 0}, "max_position.*positive"),
        ({"attention_factor": -1.0}, "attention_factor.*positive"),
        ({"truncate": False}, "truncate.*kind default"),
    ],
)
def test_a_setting_that_its_kind_does_not_take(options: Block, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RotaryConfig(**{"head_size": 16, "base": 1e4, "max_position": 64, **options})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 100.0, "aplha": 1.0}, "aplha.*Did you mean 'alpha'"),
        ({"rope_type": "yarn", "truncate": "no"}, "truncate"),
        ({"rope_type": "yarn", "factor": 0}, "factor.*positive"),
        ({"rope_type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}, "short_factor.*positive"),
        ({"rope_type": "yarn", "alpha": 3.0}, "alpha"),
        ({"alpha": 8.0, "partial_rotary_factor": 0.5}, "partial_rotary_factor.*1 with alpha"),
        ({"partial_rotary_factor": "0.5"}, "partial_rotary_factor"),
    ],
)
def test_keys_that_are_wrong(change: Block, message: str) -> None:
    block = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
    with pytest.raises(ConfigError, match=message):
        RotaryConfig.from_parameters({**block, **change}, 16, 64)
