"""Positions that are added to the embedding, and slopes of linear biases, against transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_alibi
from transformers.models.ctrl.modeling_ctrl import positional_encoding
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_alibi
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

from vllm_neuron.errors import ConfigError
from vllm_neuron.nn import Alibi, LearnedPositions, SinusoidalPositions

ROWS, H = 40, 16
POSITIONS = torch.tensor([0, 39, 7, 7, 21])


def relative(ours: Tensor, expected: Tensor) -> float:
    return float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def test_learned_rows_are_an_embedding() -> None:
    table = torch.randn(ROWS, H)
    block = LearnedPositions(ROWS, H)
    block.load_state_dict({"weight": table})
    assert torch.equal(block(POSITIONS), table[POSITIONS])


def test_learned_rows_skip_those_of_opt() -> None:
    reference = OPTLearnedPositionalEmbedding(ROWS, H)
    block = LearnedPositions(ROWS + reference.offset, H, offset=reference.offset)
    block.load_state_dict(reference.state_dict())
    with torch.no_grad():
        expected = reference(torch.ones(1, ROWS, dtype=torch.int64))[0]
    assert torch.equal(block(torch.arange(ROWS)), expected)
    with pytest.raises(IndexError):
        block(torch.tensor([ROWS]))


def test_sines_and_cosines_of_xglm() -> None:
    reference = XGLMSinusoidalPositionalEmbedding(ROWS, H, padding_idx=1)
    block = SinusoidalPositions(H, frequency_size=H - 2, offset=reference.offset)
    assert relative(block(POSITIONS), reference(POSITIONS[None])[0]) <= 1e-6


def test_sines_and_cosines_of_ctrl() -> None:
    expected = positional_encoding(ROWS, H, torch.float32)
    assert relative(SinusoidalPositions(H)(torch.arange(ROWS)), expected) <= 1e-6


def test_sines_keep_apart_above_256_in_bfloat16() -> None:
    """The angles are taken in float32 and cast at the end, however the model is stored."""
    block = SinusoidalPositions(64, dtype=torch.bfloat16)
    rows = block(torch.tensor([256, 257, 1024, 1025]))
    assert rows.dtype == torch.bfloat16
    assert not torch.equal(rows[0], rows[1]) and not torch.equal(rows[2], rows[3])
    exact = SinusoidalPositions(64, dtype=torch.float32)(torch.tensor([256, 257, 1024, 1025]))
    assert torch.equal(rows, exact.bfloat16())


@pytest.mark.parametrize("heads", [1, 4, 6, 12, 16, 71])
def test_alibi_slopes(heads: int) -> None:
    """Powers of two, and numbers between them: of Bloom, Falcon and MPT; position 1 of a row is the slope itself."""
    slopes, mask = Alibi().slopes(heads), torch.ones(1, 2, dtype=torch.int64)
    torch.testing.assert_close(slopes, bloom_alibi(mask, heads, torch.float32)[:, 0, 1], rtol=1e-6, atol=0)
    rounded = falcon_alibi(mask, heads, torch.float32).reshape(heads, -1)[:, 1]
    torch.testing.assert_close(slopes, rounded, rtol=2**-7, atol=0)
    steeper = Alibi(max_bias=5).slopes(heads)
    mpt = build_mpt_alibi_tensor(heads, 2, alibi_bias_max=5)
    torch.testing.assert_close(steeper, -mpt[:, 0, 0], rtol=1e-6, atol=0)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="even"):
        SinusoidalPositions(15)
