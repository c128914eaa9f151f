"""Embedding and head: scale, bias, multiplier and soft cap, tied or not, over any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

from tests.vllm_neuron.nn.test_sharding import fill, on_ranks
from vllm_neuron.nn import LMHead, VocabDimShardedEmbedding
from vllm_neuron.parallel import Group

V, H = 50, 64
TABLE = torch.randn(V, H, generator=torch.Generator().manual_seed(0))
X = torch.randn(5, H, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([0, 49, 17, 16, 33])
RANKS = [1, 2, 3, 4]
TINY: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


Work = Callable[[Group], Tensor]


def head(
    *, tied: bool = False, bias: Tensor | None = None, softcap: float | None = None, multiplier: float = 1.0
) -> Work:
    """Work of one rank: logits of :data:`X`."""

    def work(group: Group) -> Tensor:
        block = LMHead(H, V, bias=bias is not None, softcap=softcap, multiplier=multiplier)
        if tied:
            table = VocabDimShardedEmbedding(V, H, scale=8.0)
            fill(table.weight, TABLE)
            block.tie(table)
        else:
            fill(block.weight, TABLE)
        if bias is not None:
            fill(block.bias, bias)
        return block(X)

    return work


def embed(scale: float | None, dtype: torch.dtype = torch.float32) -> Work:
    """Work of one rank: rows of :data:`IDS`."""

    def work(group: Group) -> Tensor:
        block = VocabDimShardedEmbedding(V, H, scale=scale, dtype=dtype)
        fill(block.weight, TABLE.to(dtype))
        return block(IDS)

    return work


@pytest.mark.parametrize("ranks", RANKS)
def test_G3_the_input_is_scaled_and_tied_logits_are_not(ranks: int) -> None:
    """Hidden 64: the rows that go in are times 8, while the head reads the plain table."""
    assert torch.equal(on_ranks(ranks, embed(8.0)), TABLE[IDS] * 8.0)
    torch.testing.assert_close(on_ranks(ranks, head(tied=True)), X @ TABLE.t(), rtol=1e-6, atol=1e-5)


def test_G3_soft_cap_of_a_large_logit() -> None:
    block = LMHead(1, 1, softcap=30.0)
    fill(block.weight, torch.tensor([[100.0]]))
    assert float(block(torch.ones(1, 1))) == pytest.approx(29.924, abs=1e-3)
    plain = LMHead(1, 1, softcap=None)
    fill(plain.weight, torch.tensor([[100.0]]))
    assert float(plain(torch.ones(1, 1))) == 100.0


@pytest.mark.parametrize("ranks", RANKS)
def test_bias_multiplier_and_soft_cap_in_that_order(ranks: int) -> None:
    """A vocabulary that does not divide: the bias is padded like the table, and the padding is cut off."""
    bias = torch.randn(V, generator=torch.Generator().manual_seed(2))
    expected = 3.0 * torch.tanh((X @ TABLE.t() + bias) * 0.25 / 3.0)
    ours = on_ranks(ranks, head(bias=bias, softcap=3.0, multiplier=0.25))
    assert ours.shape == (5, V) and ours.dtype == torch.float32
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
def test_granite_divides_and_gemma_caps(ranks: int) -> None:
    """Whole models of transformers: their hidden states through our head are their logits."""
    torch.manual_seed(3)
    granite = GraniteForCausalLM(GraniteConfig(**TINY, logits_scaling=7.0, tie_word_embeddings=False)).eval()
    gemma = Gemma2ForCausalLM(Gemma2Config(**TINY, final_logit_softcapping=2.0)).eval()
    cases: tuple[tuple[Any, dict[str, float]], ...] = ((granite, {"multiplier": 1 / 7.0}), (gemma, {"softcap": 2.0}))
    for model, options in cases:
        for parameter in model.parameters():
            parameter.data.normal_(0.0, 0.3)
        with torch.no_grad():
            hidden = model.model(IDS[None]).last_hidden_state[0]
            expected = model(IDS[None]).logits[0]

        def work(group: Group, model: Any = model, options: Any = options, hidden: Tensor = hidden) -> Tensor:
            block = LMHead(H, V, **options)
            fill(block.weight, model.lm_head.weight.data)
            return block(hidden)

        ours = on_ranks(ranks, work)
        assert float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max()) <= 1e-6


def test_the_scale_is_rounded_as_the_table_is_stored() -> None:
    """The root of 2560 in bfloat16 is not the float32 one; transformers casts the factor, too."""
    scale = 2560**0.5
    reference = Gemma3TextScaledWordEmbedding(V, H, padding_idx=0, embed_scale=scale).bfloat16()
    reference.weight.data.copy_(TABLE)
    with torch.no_grad():
        expected = reference(IDS)
    assert torch.equal(on_ranks(1, embed(scale, torch.bfloat16)), expected)
    assert float(torch.tensor(scale).bfloat16()) != pytest.approx(scale, rel=1e-4)


def test_no_scale_leaves_the_rows_alone() -> None:
    assert torch.equal(on_ranks(1, embed(None)), TABLE[IDS])
