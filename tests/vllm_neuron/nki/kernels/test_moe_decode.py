"""The mixture kernel against the reference: choices, activations, limits, biases, ranks; and what it reads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.errors import OperationError
from vllm_neuron.functional.on_nki.mlp import ACTIVATIONS
from vllm_neuron.functional.on_nki.moe import slots
from vllm_neuron.nki import standin

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])


def choice(normal, tokens, k, experts):
    scores = normal(8, tokens, experts)
    return torch.rand(tokens, k, generator=torch.Generator().manual_seed(9)), scores.topk(k).indices


def weights(normal, experts, h, i, dtype, gated=True, biased=False):
    width = 2 * i if gated else i
    return {
        "up_EFH": normal(2, experts, width, h, dtype=dtype, scale=h**-0.5),
        "down_EHI": normal(3, experts, h, i, dtype=dtype, scale=i**-0.5),
        "up_bias_EF": normal(4, experts, width, dtype=dtype) if biased else None,
        "down_bias_EH": normal(5, experts, h, dtype=dtype) if biased else None,
    }


def both(on_cores, agree, cores, *tensors, **options):
    with on_cores(cores):
        found = NF.moe_experts(*tensors, **options)
    agree(found, NF.moe_experts.reference(*tensors, **options))


@settings(max_examples=60)
@given(
    st.integers(1, 20), st.integers(1, 4), st.integers(4, 12), st.integers(1, 300), st.integers(1, 300), TYPES,
    st.booleans(), st.booleans(), st.sampled_from(["output", "input"]), CORES,
)  # fmt: skip
def test_any_shape(on_cores, agree, normal, t, k, e, h, i, dtype, gated, biased, weight_on, cores):
    x = normal(1, t, h, dtype=dtype)
    given_weights = weights(normal, e, h, i, dtype, gated, biased)
    both(
        on_cores, agree, cores, x, *choice(normal, t, k, e), gated=gated, weight_on=weight_on, **given_weights
    )  # fmt: skip


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
def test_activations(on_cores, agree, normal, act, gated):
    x = normal(1, 5, 96, dtype=torch.bfloat16)
    given_weights = weights(normal, 6, 96, 200, torch.bfloat16, gated)
    both(on_cores, agree, 1, x, *choice(normal, 5, 2, 6), act=act, gated=gated, **given_weights)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "limits", [{"clamp_limit": 0.3}, {"clamp_limit": 0.3, "clamp_alpha": 1.702, "up_shift": 1.0}, {"up_shift": -0.5}]
)
def test_limits(on_cores, agree, normal, limits, dtype, cores):
    x, chosen = normal(1, 5, 100, dtype=dtype), choice(normal, 5, 2, 6)
    given_weights = weights(normal, 6, 100, 260, dtype, True, True)
    plain = NF.moe_experts.reference(x, *chosen, **given_weights)
    cut = NF.moe_experts.reference(x, *chosen, **given_weights, **limits)
    assert (plain.float() - cut.float()).norm() > 0.05 * plain.float().norm()
    both(on_cores, agree, cores, x, *chosen, **given_weights, **limits)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("weight_on", ["output", "input"])
@pytest.mark.parametrize("first", [0, 4, 12])
def test_experts_of_a_rank(on_cores, agree, normal, first, weight_on, cores):
    """Choices of other ranks' experts add nothing; with ``first`` 12 all are of other ranks."""
    x = normal(1, 5, 64)
    given_weights = weights(normal, 4, 64, 96, torch.float32, biased=True)
    options = {"first_expert": first, "weight_on": weight_on}
    both(on_cores, agree, cores, x, *choice(normal, 5, 2, 12), **given_weights, **options)


def test_slots():
    """Each chosen expert once, in rising order; the rest of the slots name none."""
    weights_TK, experts_TK = torch.tensor([[0.7, 0.3], [0.6, 0.4]]), torch.tensor([[5, 2], [9, 5]])
    index, weight, chosen = slots(weights_TK, experts_TK, 6, 0)
    assert index.tolist() == [[2, 5, 6, 6]]
    torch.testing.assert_close(weight[:2], torch.tensor([[0.3, 0.0], [0.7, 0.4]]))
    assert chosen[:2].tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert not weight[2:].any() and not chosen[2:].any()
    assert slots(weights_TK, experts_TK, 3, 4)[0].tolist() == [[1, 3, 3]]


@pytest.mark.parametrize("cores", [1, 2])
def test_reads_the_chosen_experts_alone(on_cores, normal, cores):
    """Two tokens with one expert in common: three experts of 32 are read, each once by one of the cores."""
    x = normal(1, 2, 256, dtype=torch.bfloat16)
    given_weights = weights(normal, 32, 256, 128, torch.bfloat16)
    with on_cores(cores), standin.counting() as counted:
        NF.moe_experts(x, torch.rand(2, 2), torch.tensor([[3, 17], [17, 30]]), **given_weights)
    [counts] = counted.calls
    bound = 3 * 3 * 256 * 128 * 2
    assert bound <= counts.dma_bytes["hbm>sbuf"] <= 1.02 * bound


def test_a_choice_with_weight_0_still_passes(on_cores, agree, normal):
    x = normal(1, 2, 32)
    given_weights = weights(normal, 4, 32, 16, torch.float32, biased=True)
    for weight_on in ("output", "input"):
        both(
            on_cores, agree, 1, x, torch.tensor([[0.0], [1.0]]), torch.tensor([[1], [2]]), weight_on=weight_on,
            **given_weights,
        )  # fmt: skip


@pytest.mark.parametrize("weight_on", ["output", "input"])
@pytest.mark.parametrize("cores", [1, 2])
def test_an_expert_that_overflows_touches_its_own_tokens_alone(on_cores, normal, cores, weight_on):
    """What it gives for a token that did not choose it is not a number times 0, nor what the last slot computes."""
    x, given_weights = normal(1, 3, 64), weights(normal, 4, 64, 32, torch.float32)
    given_weights["up_EFH"][1] = float("inf")
    call = torch.full((3, 2), 0.5), torch.tensor([[0, 3], [1, 3], [3, 0]])
    with on_cores(cores):
        found = NF.moe_experts(x, *call, weight_on=weight_on, **given_weights)
    expected = NF.moe_experts.reference(x, *call, weight_on=weight_on, **given_weights)
    assert expected.isfinite().all(1).tolist() == [True, False, True]
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"act": "mish"}, ["act", "mish", "silu"]),
        ({"t": 513}, ["x_TH.shape[0]", "513", "512"]),
        ({"h": 40000}, ["bytes a partition"]),
        ({"weight_dtype": torch.bfloat16}, ["up_EFH.dtype", "bfloat16"]),
        ({"gated": False}, ["up_EFH.shape", "(2, 16, 32)", "(2, 8, 32)"]),
        ({"gated": False, "clamp_limit": 1.0, "up_gated": False}, ["clamp_limit", "gated=False"]),
        ({"weight_on": "both"}, ["weight_on", "both", "output, input"]),
        ({"clamp_limit": -1.0}, ["clamp_limit", "-1.0", "at least 0"]),
        ({"chosen": 3}, ["experts_TK.shape", "(3, 1)", "(2, 1)"]),
    ],
)
def test_refusals_name_the_limit(on_cores, normal, change, words):
    t, h = change.get("t", 2), change.get("h", 32)
    given_weights = weights(normal, 2, h, 8, change.get("weight_dtype", torch.float32), change.get("up_gated", True))
    options = {n: change[n] for n in ("act", "gated", "clamp_limit", "weight_on") if n in change}
    with on_cores(1), pytest.raises(OperationError) as error:
        NF.moe_experts(normal(1, t, h), *choice(normal, change.get("chosen", t), 1, 2), **given_weights, **options)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("t, k, e, h, i", [(1, 8, 128, 2048, 768), (32, 4, 32, 2880, 360), (512, 2, 8, 1024, 896)])
def test_large(on_cores, agree, normal, t, k, e, h, i, cores):
    x = normal(1, t, h, dtype=torch.bfloat16)
    both(on_cores, agree, cores, x, *choice(normal, t, k, e), **weights(normal, e, h, i, torch.bfloat16))
