"""Rotary tables and their use on heads against transformers: every kind, style and part of a head."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma4TextConfig, LlamaConfig, Qwen3VLTextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.cohere_compass.configuration_cohere_compass import CohereCompassTextConfig
from transformers.models.cohere_compass.modeling_cohere_compass import CohereCompassRotaryEmbedding
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama
from transformers.models.nanochat import modeling_nanochat
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.nn import Rotary, RotaryConfig

D, ORIGINAL, POSITIONS = 16, 32, 96
Block = dict[str, Any]
YARN: Block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 3.0, "original_max_position_embeddings": ORIGINAL}
LONG: Block = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.7 * i for i in range(8)],
}
BLOCKS: dict[str, Block] = {
    "default": {"rope_type": "default", "rope_theta": 5e3},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "yarn": YARN,
    "yarn, bounds": {**YARN, "beta_fast": 4.0, "beta_slow": 2.0},
    "yarn, not truncated": {**YARN, "truncate": False},
    "yarn, its own attention factor": {**YARN, "attention_factor": 1.7},
    "yarn, two magnitudes": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, one magnitude": {**YARN, "mscale": 0.7},
    "yarn, equal bounds": {**YARN, "beta_fast": 1.0, "beta_slow": 1.0},
    "longrope": LONG,
    "longrope, factor": {**LONG, "factor": 8.0},
    "longrope, its own attention factor": {**LONG, "attention_factor": 1.4},
    "partial": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "partial, linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.5},
    "partial, yarn": {**YARN, "partial_rotary_factor": 0.5},
}


def heads(size: int = D, positions: int = POSITIONS) -> Tensor:
    """Random heads [T, 3, D]."""
    return torch.randn(positions, 3, size, generator=torch.Generator().manual_seed(0))


def turned(config: RotaryConfig, x_TND: Tensor) -> Tensor:
    rotary = Rotary(config)
    rotary.build(torch.float32, torch.device("cpu"))
    return rotary(torch.arange(len(x_TND)), x_TND)


def hf_turned(modeling: ModuleType, cos: Tensor, sin: Tensor, x_TND: Tensor) -> Tensor:
    """The module's own use of the rows [T, R] on heads [T, N, D]."""
    x = x_TND.transpose(0, 1)[None]
    width = cos.shape[-1]
    if modeling is modeling_glm or width == x.shape[-1]:
        out = modeling.apply_rotary_pos_emb(x, x, cos[None], sin[None])[0]
    else:
        part = modeling.apply_rotary_pos_emb(x[..., :width], x[..., :width], cos[None], sin[None])[0]
        out = torch.cat((part, x[..., width:]), dim=-1)
    return out[0].transpose(0, 1)


def hf_rows(block: Block, positions: int = POSITIONS) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, R] of a sequence in a Llama with these settings (GLM for a part of the head)."""
    values: dict[str, Any] = {"head_dim": D, "max_position_embeddings": POSITIONS, "rope_parameters": dict(block)}
    module: nn.Module
    if block["rope_type"] == "default" and "partial_rotary_factor" in block:
        module = modeling_glm.GlmRotaryEmbedding(modeling_glm.GlmConfig(**values))
    else:
        module = modeling_llama.LlamaRotaryEmbedding(LlamaConfig(hidden_size=4 * D, num_attention_heads=4, **values))
    with torch.no_grad():
        cos, sin = module(torch.empty(0), torch.arange(positions)[None])
    return cos[0], sin[0]


def relative(ours: Tensor, expected: Tensor) -> float:
    return float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize("name", BLOCKS)
def test_a_sequence_past_the_original_context(name: str) -> None:
    """Table and use, in the half style: every position up to the last one of the model."""
    x = heads()
    expected = hf_turned(modeling_llama, *hf_rows(BLOCKS[name]), x)
    assert relative(turned(RotaryConfig.from_parameters(BLOCKS[name], D, POSITIONS), x), expected) <= 1e-6


@pytest.mark.parametrize("name", BLOCKS)
def test_interleaved(name: str) -> None:
    x = heads()
    expected = hf_turned(modeling_glm, *hf_rows(BLOCKS[name]), x)
    config = RotaryConfig.from_parameters(BLOCKS[name], D, POSITIONS, interleaved=True)
    assert relative(turned(config, x), expected) <= 1e-6


@pytest.mark.parametrize("name", ["partial", "partial, yarn"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_trailing_elements_turn_and_leading_ones_stay(name: str, interleaved: bool) -> None:
    x = heads()
    tail = hf_turned(modeling_glm if interleaved else modeling_llama, *hf_rows(BLOCKS[name]), x[..., D // 2 :])
    config = RotaryConfig.from_parameters(BLOCKS[name], D, POSITIONS, interleaved=interleaved, leading=False)
    ours = turned(config, x)
    assert torch.equal(ours[..., : D // 2], x[..., : D // 2])
    assert relative(ours[..., D // 2 :], tail) <= 1e-6


def test_reversed_angles_of_nanochat() -> None:
    x = heads()
    expected = hf_turned(modeling_nanochat, *hf_rows(BLOCKS["default"]), x)
    ours = turned(RotaryConfig.from_parameters(BLOCKS["default"], D, POSITIONS, reverse=True), x)
    assert relative(ours, expected) <= 1e-6
    assert relative(turned(RotaryConfig.from_parameters(BLOCKS["default"], D, POSITIONS), x), expected) > 0.1


def test_longrope_inside_the_original_context_takes_the_short_factors() -> None:
    """A table that ends at the original context is that of a model that never passes it."""
    config = RotaryConfig.from_parameters({**LONG, "factor": 3.0}, D, ORIGINAL)
    x = heads(positions=ORIGINAL)
    expected = hf_turned(modeling_llama, *hf_rows(LONG, ORIGINAL), x)
    assert not config.long and relative(turned(config, x), expected) <= 1e-6
    assert relative(turned(dataclasses.replace(config, max_position=POSITIONS), x), expected) > 0.1


def test_dynamic_ends_where_its_base_would_grow() -> None:
    rotary = Rotary(RotaryConfig.from_parameters(BLOCKS["dynamic"], D, POSITIONS))
    rotary.build(torch.float32, torch.device("cpu"))
    assert len(rotary.table) == POSITIONS
    with pytest.raises(IndexError):
        rotary(torch.tensor([POSITIONS]), heads(positions=1))


def test_sections_of_a_multimodal_rope_are_plain_on_text() -> None:
    block = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLTextConfig(head_dim=D, max_position_embeddings=POSITIONS, rope_parameters=dict(block))
    with torch.no_grad():
        positions = torch.arange(POSITIONS)[None].expand(3, 1, -1)
        cos, sin = Qwen3VLTextRotaryEmbedding(config)(torch.empty(0), positions)
    x = heads()
    expected = hf_turned(modeling_llama, cos[0], sin[0], x)
    assert relative(turned(RotaryConfig.from_parameters(block, D, POSITIONS), x), expected) <= 1e-6


@pytest.mark.parametrize(
    ("block", "rotary_size", "width"),
    [
        ({"partial_rotary_factor": 0.5}, None, 64),
        ({}, 64, 64),
        ({"partial_rotary_factor": 0.5}, 64, 64),
        ({}, None, 128),
    ],
)
def test_E5_partial_rotary_is_applied_once(block: Block, rotary_size: int | None, width: int) -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e4, **block}
    config = RotaryConfig.from_parameters(parameters, 128, 4, rotary_size=rotary_size)
    assert config.width == width and len(config.inverse_frequencies()) == width // 2
    x = heads(128, 4)
    out = turned(config, x)
    assert torch.equal(out[..., width:], x[..., width:])
    assert bool((out[1:, :, width - 1] != x[1:, :, width - 1]).all())


def test_E5_two_sizes_that_disagree() -> None:
    block = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    with pytest.raises(ConfigError, match=r"rotary_size.*64.*32"):
        RotaryConfig.from_parameters(block, 128, 4, rotary_size=64)


def test_E7_proportional_rope_divides_by_the_whole_head() -> None:
    block = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    config = RotaryConfig.from_parameters(block, 512, 64)
    inverse = config.inverse_frequencies()
    assert len(inverse) == 256 and int((inverse != 0).sum()) == 64
    assert float(inverse[63]) == pytest.approx(0.03338, abs=5e-6)

    text = Gemma4TextConfig(head_dim=512, rope_parameters={"full_attention": dict(block)})
    text.rope_parameters = dict(block)
    theirs, attention_factor = ROPE_INIT_FUNCTIONS["proportional"](text)
    torch.testing.assert_close(inverse, theirs, rtol=1e-6, atol=0)
    assert config.attention_factor == attention_factor == 1.0
    x = heads(512, 64)
    angles = torch.outer(torch.arange(64.0), theirs)
    rows = torch.cat((angles, angles), dim=-1)
    assert relative(turned(config, x), hf_turned(modeling_llama, rows.cos(), rows.sin(), x)) <= 1e-6


def test_E7_a_rope_type_that_is_not_known_stops() -> None:
    with pytest.raises(UnsupportedError, match="ntk_by_magic"):
        RotaryConfig.from_parameters({"rope_type": "ntk_by_magic", "rope_theta": 1e4}, D, POSITIONS)
    with pytest.raises(UnsupportedError, match="ntk_by_magic"):
        RotaryConfig(D, 1e4, POSITIONS, kind="ntk_by_magic")


def test_E9_positions_above_256_keep_apart_in_bfloat16() -> None:
    """The table is float32 cast once, so it equals the reference's own float32 rows cast at the end."""
    rotary = Rotary(RotaryConfig(64, 1e4, 1026))
    rotary.build(torch.bfloat16, torch.device("cpu"))
    rows = rotary.table
    assert rows.dtype == torch.bfloat16
    assert not torch.equal(rows[256], rows[257]) and not torch.equal(rows[1024], rows[1025])
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=1026)
    with torch.no_grad():
        cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(torch.empty(0), torch.arange(1026)[None])
    assert torch.equal(rows[:, :64], cos[0].bfloat16())
    assert torch.equal(rows[:, 96:], sin[0, :, 32:].bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factr": 2.0}, "Did you mean 'factor'"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": True}, "rope_theta"),
        ({"partial_rotary_factor": 0.2}, "rotary_size.*3"),
        ({"partial_rotary_factor": 2.0}, "rotary_size.*32"),
        ({**LONG, "long_factor": [1.0] * 7}, "long_factors.*8 numbers"),
        ({**LONG, "short_factor": [1.0] * 9}, "short_factors.*8 numbers"),
        ({"rope_type": "yarn"}, "original_max_position_embeddings"),
        ({"rope_type": "linear"}, "factor"),
    ],
)
def test_settings_that_are_wrong(change: Block, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RotaryConfig.from_parameters({"rope_type": "default", "rope_theta": 1e4, **change}, D, POSITIONS)


def test_dealt_frequencies_of_cohere_compass() -> None:
    """The first 6 of 8 frequencies: those of even index, then those of odd index; positions of text alone."""
    block = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    values: dict[str, Any] = {"head_dim": D, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    config = CohereCompassTextConfig(**values)
    config.rope_parameters = {"sliding_attention": dict(block)}
    theirs = CohereCompassRotaryEmbedding(config).sliding_attention_inv_freq
    ours = RotaryConfig.from_parameters(block, D, POSITIONS, dealt=6)
    torch.testing.assert_close(ours.inverse_frequencies(), theirs, rtol=1e-6, atol=0)


def test_more_dealt_frequencies_than_there_are() -> None:
    with pytest.raises(ConfigError, match="dealt"):
        RotaryConfig(D, 1e4, POSITIONS, dealt=9)
