"""The MLP kernel against the reference: both ways through it, activations, limits, biases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.errors import OperationError
from vllm_neuron.functional.on_nki.limits import KEPT_BYTES
from vllm_neuron.functional.on_nki.mlp import ACTIVATIONS

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])
LENGTHS = st.one_of(st.sampled_from([1, 127, 128, 129, 256, 257]), st.integers(1, 300))


def weights(normal, h, i, dtype, gated, biased):
    width = 2 * i if gated else i
    return {
        "gate_up_HF": normal(2, h, width, dtype=dtype, scale=h**-0.5),
        "down_IH": normal(3, i, h, dtype=dtype, scale=i**-0.5),
        "gate_up_bias_F": normal(4, width, dtype=dtype) if biased else None,
        "down_bias_H": normal(5, h, dtype=dtype) if biased else None,
    }


def both(on_cores, agree, cores, x, **arguments):
    with on_cores(cores):
        found = NF.mlp(x, **arguments)
    agree(found, NF.mlp.reference(x, **arguments))


@settings(max_examples=60)
@given(LENGTHS, st.integers(1, 300), st.integers(1, 600), TYPES, st.booleans(), st.booleans(), CORES)
def test_any_shape(on_cores, agree, normal, t, h, i, dtype, gated, biased, cores):
    x = normal(1, t, h, dtype=dtype)
    both(on_cores, agree, cores, x, gated=gated, **weights(normal, h, i, dtype, gated, biased))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("t", [3, 150])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations(on_cores, agree, normal, dtype, act, gated, t, cores):
    x = normal(1, t, 96, dtype=dtype)
    both(on_cores, agree, cores, x, act=act, gated=gated, **weights(normal, 96, 200, dtype, gated, False))


@pytest.mark.parametrize("t", [1, 140])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "limits",
    [
        {"clamp_limit": 0.5},
        {"clamp_limit": 0.3, "clamp_alpha": 1.702, "up_shift": 1.0},
        {"clamp_alpha": 1.702},
        {"up_shift": -0.5},
        {"clamp_limit": 0.1, "act": "gelu_pytorch_tanh"},
    ],
)
def test_limits(on_cores, agree, normal, limits, dtype, cores, t):
    """The limits cut a good part of the values, so a kernel that forgets one fails."""
    x, given_weights = normal(1, t, 100, dtype=dtype), weights(normal, 100, 260, dtype, True, True)
    plain = NF.mlp.reference(x, **given_weights)
    cut = NF.mlp.reference(x, **given_weights, **limits)
    assert (plain.float() - cut.float()).norm() > 0.05 * plain.float().norm()
    both(on_cores, agree, cores, x, **given_weights, **limits)


def test_not_gated(on_cores, agree, normal):
    x, given_weights = normal(1, 4, 64), weights(normal, 64, 128, torch.float32, False, True)
    both(on_cores, agree, 1, x, gated=False, act="relu2", **given_weights)


def test_steps_round_as_the_reference_does(on_cores, normal):
    """In bfloat16 nearly every element is bit-equal: the sums differ in order only."""
    x = normal(1, 64, 256, dtype=torch.bfloat16)
    given_weights = weights(normal, 256, 512, torch.bfloat16, True, False)
    with on_cores(1):
        found = NF.mlp(x, **given_weights)
    assert (found == NF.mlp.reference(x, **given_weights)).float().mean() > 0.99


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 2048), st.integers(1, 800), st.integers(1, 1500), TYPES, st.booleans(), st.booleans(), CORES)
def test_any_length(on_cores, agree, normal, t, h, i, dtype, gated, biased, cores):
    x = normal(1, t, h, dtype=dtype)
    both(on_cores, agree, cores, x, gated=gated, **weights(normal, h, i, dtype, gated, biased))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("t, h, i", [(2048, 1024, 896), (1025, 2880, 360), (1, 4096, 3584), (100, 5120, 1600)])
def test_large(on_cores, agree, normal, t, h, i, dtype, cores):
    x = normal(1, t, h, dtype=dtype)
    both(on_cores, agree, cores, x, **weights(normal, h, i, dtype, True, True))


def test_an_activation_without_a_kernel_is_refused_by_name(normal):
    x, given_weights = normal(1, 2, 64), weights(normal, 64, 64, torch.float32, True, False)
    with NF.use_kernels("simulate"):
        answer = NF.mlp.explain(x, act="mish", **given_weights)["nki.mlp"]
        replaced = NF.mlp.explain(x, act="mish", clamp_alpha=1.0, **given_weights)["nki.mlp"]
    assert (answer.ok, answer.field, answer.value) == (False, "act", "mish")
    assert replaced.ok


@pytest.mark.parametrize(
    "change, field",
    [
        ({"x_TH": torch.zeros(2, 60)}, "gate_up_HF.shape"),
        ({"down_IH": torch.zeros(15, 64)}, "gate_up_HF.shape"),
        ({"gated": False}, "gate_up_HF.shape"),
        ({"down_IH": torch.zeros(16, 32)}, "down_IH.shape"),
        ({"gate_up_bias_F": torch.zeros(33)}, "gate_up_bias_F.shape"),
        ({"down_bias_H": torch.zeros(65)}, "down_bias_H.shape"),
        ({"clamp_limit": -1.0}, "clamp_limit"),
    ],
)
def test_refusals_name_the_field(change, field):
    call = {"x_TH": torch.zeros(2, 64), "gate_up_HF": torch.zeros(64, 32), "down_IH": torch.zeros(16, 64)}
    with NF.use_kernels("simulate"):
        answer = NF.mlp.explain(**{**call, **change})["nki.mlp"]
    assert (answer.ok, answer.field) == (False, field)


@pytest.mark.parametrize("mode", ["off", "auto", "require"])
def test_options_of_a_gate_without_one_are_an_error(mode):
    call = torch.zeros(2, 64), torch.zeros(64, 16), torch.zeros(16, 64)
    with NF.use_kernels(mode), pytest.raises(OperationError, match=r"mlp.clamp_limit.*gated=False"):
        NF.mlp(*call, gated=False, clamp_limit=7.0)


def test_sizes_that_do_not_fit_are_refused(normal):
    with NF.use_kernels("simulate"):
        x = torch.zeros(1, 1).expand(128, 30000)
        gate_up, down = torch.empty(30000, 20000, device="meta"), torch.empty(10000, 30000, device="meta")
        answer = NF.mlp.explain(x, gate_up, down)["nki.mlp"]
    assert (answer.ok, answer.field, answer.value) == (False, "H + I", 40000)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("t", [128, 300])
@pytest.mark.parametrize("h", [128, 30000])
def test_the_largest_sizes_that_are_taken_fit(on_cores, agree, normal, h, t, cores):
    i = KEPT_BYTES // (128 * 4) * 128 - 128 * -(-h // 128)
    both(on_cores, agree, cores, normal(1, t, h), **weights(normal, h, i, torch.float32, True, True))
