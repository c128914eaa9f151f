"""What blocks are fed, and when a counterpart that ends elsewhere is told from a wrong block."""

from __future__ import annotations

import pytest
import torch

from onboard.prove.blocks import LOUD, PLAIN, ROUTED, TINY, Compared, end_elsewhere, scales_of
from vllm_neuron.accuracy.compare import rel_err
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.errors import NonFiniteError, ShapeError
from vllm_neuron.nn import Attention, GatedMLP, MoE, RMSNorm, RouterConfig


def test_each_kind_of_block_gets_what_its_numbers_bear() -> None:
    attention = Attention(0, 16, heads=2, kv_heads=2, head_size=8, rotary=None)
    moe = MoE(16, experts=4, top_k=2, intermediate_size=8, act="silu", router=RouterConfig())
    assert scales_of(attention) == scales_of(torch.nn.Sequential(attention, moe)) == (PLAIN, TINY)
    assert scales_of(moe) == (PLAIN, ROUTED)
    assert scales_of(RMSNorm(4, eps=1e-6)) == scales_of(GatedMLP(16, 8, act="silu")) == (PLAIN, TINY, LOUD)


def compared(layer: dict[float, float], block: dict[float, float], problem: str = "") -> list[Compared]:
    whole = Pair("layers.0", "h.0", 0, whole=True)
    return [Compared(whole, layer), Compared(Pair("layers.0.mlp", "h.0.mlp", 0), block, problem)]


@pytest.mark.parametrize(
    ("layer", "block", "passes", "elsewhere"),
    [
        ({PLAIN: 1e-7, TINY: 1e-7}, {PLAIN: 0.9}, True, True),
        ({PLAIN: 1e-7, TINY: 1e-7}, {PLAIN: 1e-7, TINY: 0.9}, True, False),
        ({PLAIN: 1e-7, TINY: 1e-7}, {PLAIN: 1e-4}, True, False),
        ({PLAIN: 1e-7, TINY: 1e-4}, {PLAIN: 0.9}, True, False),
        ({PLAIN: 1e-7, TINY: 1e-7}, {PLAIN: 0.9}, False, False),
    ],
    ids=["elsewhere", "only an eps", "only a little", "its layer is wrong", "the model is wrong"],
)
def test_a_counterpart_that_ends_elsewhere(
    layer: dict[float, float], block: dict[float, float], passes: bool, elsewhere: bool
) -> None:
    assert end_elsewhere(compared(layer, block), passes) == ({"layers.0.mlp"} if elsewhere else set())


def test_a_block_without_a_layer_to_cover_it_is_wrong() -> None:
    assert end_elsewhere(compared({PLAIN: 1e-7}, {PLAIN: 0.9})[1:], True) == set()


def test_relative_error_is_the_worst_tokens() -> None:
    expected = torch.tensor([[100.0, 0.0], [0.0, 1.0]])
    found = torch.tensor([[100.0, 0.0], [0.0, 1.001]])
    assert rel_err(found, expected, "x") == pytest.approx(1e-3, rel=1e-3)
    assert rel_err(expected, expected, "x") == 0.0
    assert rel_err(torch.tensor([[1e-9, 0.0]]), torch.zeros(1, 2), "x") == float("inf")
    with pytest.raises(ShapeError, match=r"\[1, 2\]"):
        rel_err(found[:1], expected, "x")
    for found, expected in (
        (torch.tensor([[torch.nan]]), torch.ones(1, 1)),
        (torch.ones(1, 1), torch.tensor([[torch.nan]])),
    ):
        with pytest.raises(NonFiniteError):
            rel_err(found, expected, "x")
