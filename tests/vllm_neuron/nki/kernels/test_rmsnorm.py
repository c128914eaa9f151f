"""The norm kernels against the reference: the three weights, the three layouts on chip, and the sum with a residual."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.functional.on_nki.norm import RMS_NORM_RESIDUAL

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])
WEIGHTS = ["plain", "plus_one", "none"]


def arguments(normal, weight, d, dtype, eps=1e-5):
    scale = None if weight == "none" else normal(9, d, dtype=dtype)
    return {"weight_D": scale, "eps": eps, "plus_one": weight == "plus_one"}


def both(on_cores, agree, cores, x, **given_arguments):
    with on_cores(cores):
        found = NF.rms_norm(x, **given_arguments)
    agree(found, NF.rms_norm.reference(x, **given_arguments))


@settings(max_examples=80)
@given(st.integers(1, 600), st.integers(1, 400), TYPES, st.sampled_from(WEIGHTS), CORES, st.sampled_from([1e-6, 0.1]))
def test_any_shape(on_cores, agree, normal, rows, d, dtype, weight, cores, eps):
    both(on_cores, agree, cores, normal(1, rows, d, dtype=dtype), **arguments(normal, weight, d, dtype, eps))


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(8, 40), TYPES, st.sampled_from(WEIGHTS), CORES)
def test_few_long_rows(on_cores, agree, normal, rows, blocks, dtype, weight, cores):
    """From 1,024 elements on a row is spread over the partitions; above 32 rows it is not."""
    d = 128 * blocks
    both(on_cores, agree, cores, normal(1, rows, d, dtype=dtype), **arguments(normal, weight, d, dtype))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_norm_over_heads(on_cores, agree, normal, size, cores):
    heads = normal(1, 37, 5, size, dtype=torch.bfloat16)
    both(on_cores, agree, cores, heads, **arguments(normal, "plus_one", size, torch.bfloat16))
    part = heads[:, 1:3]
    assert not part.is_contiguous()
    both(on_cores, agree, cores, part, **arguments(normal, "plain", size, torch.bfloat16))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_small_and_large_values(on_cores, agree, normal, scale):
    x = normal(1, 40, 1024, dtype=torch.bfloat16, scale=scale)
    both(on_cores, agree, 1, x, **arguments(normal, "plain", 1024, torch.bfloat16))
    both(on_cores, agree, 1, x[:3], **arguments(normal, "plain", 1024, torch.bfloat16))


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("rows, d", [(5, 2048), (33, 100), (700, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_residual_equals_the_chain(agree, normal, dtype, rows, d, cores, weight):
    x, residual = normal(1, rows, d, dtype=dtype), normal(2, rows, d, dtype=dtype)
    given_arguments = arguments(normal, weight, d, dtype)
    scale, eps, plus_one = given_arguments.values()
    normed, total = RMS_NORM_RESIDUAL[cores](x, residual, scale, eps, plus_one)
    assert torch.equal(total, x + residual)
    agree(normed, NF.rms_norm.reference(x + residual, **given_arguments))


def test_inside_a_compiled_graph(agree, normal):
    x, residual, weight = normal(1, 6, 64), normal(2, 6, 64), normal(3, 64)

    def run(x, residual):
        normed, total = RMS_NORM_RESIDUAL[1](x, residual, weight, 1e-6)
        return normed + 1, total

    normed, total = torch.compile(run, fullgraph=True, backend="aot_eager")(x, residual)
    agree(total, x + residual)
    agree(normed, NF.rms_norm.reference(x + residual, weight, eps=1e-6) + 1)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.integers(1, 5000), st.integers(1, 6000), TYPES, st.sampled_from(WEIGHTS), CORES)
def test_any_length(on_cores, agree, normal, rows, d, dtype, weight, cores):
    rows = min(rows, 4_000_000 // d)
    both(on_cores, agree, cores, normal(1, rows, d, dtype=dtype), **arguments(normal, weight, d, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, d", [(2048, 4096), (2047, 5120), (1, 8192), (65536, 128)])
def test_large(on_cores, agree, normal, rows, d, dtype, cores):
    both(on_cores, agree, cores, normal(1, rows, d, dtype=dtype), **arguments(normal, "plain", d, dtype))


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_longest_row_that_is_taken_fits(on_cores, agree, normal, dtype, plus_one):
    weight = "plus_one" if plus_one else "plain"
    x = torch.zeros(1, 1, dtype=dtype).expand(300, 60000)
    with NF.use_kernels("simulate"):
        answer = NF.rms_norm.explain(x, None, eps=1e-6, plus_one=plus_one)["nki.rmsnorm"]
    assert answer.field == "x.shape[-1]"
    most = int(answer.limit.split()[2])
    both(on_cores, agree, 1, normal(1, 300, most, dtype=dtype), **arguments(normal, weight, most, dtype))


def test_a_weight_of_another_type_is_refused(normal):
    with NF.use_kernels("simulate"):
        answer = NF.rms_norm.explain(normal(1, 2, 64, dtype=torch.bfloat16), normal(2, 64), eps=1e-6)["nki.rmsnorm"]
    assert (answer.ok, answer.field) == (False, "weight_D.dtype")


@pytest.mark.parametrize(
    "weight, field",
    [
        (torch.zeros(63), "weight_D.shape"),
        (torch.zeros(65), "weight_D.shape"),
        (torch.zeros(1, 64), "weight_D.shape"),
        (torch.zeros(128)[::2], "weight_D.stride()"),
    ],
)
def test_a_weight_of_another_layout_is_refused(normal, weight, field):
    with NF.use_kernels("simulate"):
        answer = NF.rms_norm.explain(normal(1, 2, 64), weight, eps=1e-6)["nki.rmsnorm"]
    assert (answer.ok, answer.field) == (False, field)
