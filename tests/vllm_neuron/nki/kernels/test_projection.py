"""linear, qkv and o_proj kernels against the references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.functional.on_nki.limits import KEPT_BYTES

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
OPERATIONS = st.sampled_from([NF.linear, NF.qkv_proj, NF.o_proj])
CORES = st.sampled_from([1, 2])


def tokens(most):
    """Lengths around the tile sizes, and any other."""
    return st.one_of(st.sampled_from([1, 127, 128, 129, 255, 256, 257]), st.integers(1, most)).map(
        lambda n: min(n, most)
    )


@settings(max_examples=80)
@given(OPERATIONS, tokens(300), st.integers(1, 400), st.integers(1, 700), TYPES, st.booleans(), CORES)
def test_any_shape(on_cores, agree, normal, operation, t, h, o, dtype, biased, cores):
    x, w = normal(1, t, h, dtype=dtype), normal(2, h, o, dtype=dtype, scale=h**-0.5)
    bias = normal(3, o, dtype=dtype) if biased else None
    with on_cores(cores):
        found = operation(x, w, bias)
    agree(found, operation.reference(x, w, bias))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (8, 2), (16, 1)])
def test_heads(on_cores, agree, normal, heads, kv_heads, size, cores):
    hidden, features = 192, (heads + 2 * kv_heads) * size
    x = normal(1, 7, hidden, dtype=torch.bfloat16)
    qkv, o = normal(2, hidden, features, dtype=torch.bfloat16), normal(3, heads * size, hidden, dtype=torch.bfloat16)
    with on_cores(cores):
        found = NF.qkv_proj(x, qkv)
        out = NF.o_proj(found[:, : heads * size], o)
    agree(found, NF.qkv_proj.reference(x, qkv))
    agree(out, NF.o_proj.reference(found[:, : heads * size], o))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_beyond_the_banks_and_a_wide_contraction(on_cores, agree, normal, dtype):
    x, w = normal(1, 3, 2500, dtype=dtype), normal(2, 2500, 2300, dtype=dtype, scale=0.02)
    with on_cores(1):
        found = NF.linear(x, w)
    agree(found, NF.linear.reference(x, w))


@pytest.mark.slow
@settings(max_examples=60)
@given(OPERATIONS, tokens(2048), st.integers(1, 2000), st.integers(1, 1500), TYPES, st.booleans(), CORES)
def test_any_length(on_cores, agree, normal, operation, t, h, o, dtype, biased, cores):
    x, w = normal(1, t, h, dtype=dtype), normal(2, h, o, dtype=dtype, scale=h**-0.5)
    bias = normal(3, o, dtype=dtype) if biased else None
    with on_cores(cores):
        found = operation(x, w, bias)
    agree(found, operation.reference(x, w, bias))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("t, h, o", [(2048, 1000, 1100), (1537, 4096, 513), (1, 8192, 5000), (640, 14336, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large(on_cores, agree, normal, dtype, t, h, o, cores):
    x, w, bias = normal(1, t, h, dtype=dtype), normal(2, h, o, dtype=dtype, scale=h**-0.5), normal(3, o, dtype=dtype)
    with on_cores(cores):
        found = NF.qkv_proj(x, w, bias)
    agree(found, NF.qkv_proj.reference(x, w, bias))


def test_a_view_of_a_matrix_is_refused_with_the_way_to_lay_it_out(normal):
    x, stored = normal(1, 4, 64), normal(2, 32, 64)
    with NF.use_kernels("simulate"):
        answer = NF.linear.explain(x, stored.t())["nki.linear"]
    assert not answer.ok and answer.field == "weight_HO.stride()" and "lay_out" in answer.limit


@pytest.mark.parametrize(
    "x, w, field",
    [
        (torch.zeros(2, 8, dtype=torch.int32), torch.zeros(8, 4), "x_TH.dtype"),
        (torch.zeros(2, 8), torch.zeros(8, 4, dtype=torch.bfloat16), "weight_HO.dtype"),
        (torch.zeros(0, 8), torch.zeros(8, 4), "x_TH.shape"),
        (torch.zeros(1, 2, 8), torch.zeros(8, 4), "x_TH.shape"),
        (torch.zeros(2, 8), torch.zeros(16, 4), "weight_HO.shape"),
        (torch.zeros(2, 8), torch.zeros(7, 4), "weight_HO.shape"),
        (torch.zeros(2, 8), torch.zeros(8, 0), "weight_HO.shape"),
        (torch.zeros(2, 8), torch.zeros(8), "weight_HO.shape"),
        (torch.zeros(1, 1, dtype=torch.bfloat16).expand(128, 60000), torch.zeros(1, 1).expand(60000, 1), "weight_HO"),
    ],
)
def test_refusals_name_the_field(x, w, field):
    with NF.use_kernels("simulate"):
        answer = NF.linear.explain(x, w)["nki.linear"]
    assert not answer.ok and answer.field.startswith(field)


@pytest.mark.parametrize(
    "bias, field",
    [(torch.zeros(3), "bias_O.shape"), (torch.zeros(5), "bias_O.shape"), (torch.zeros(8)[::2], "bias_O.stride()")],
)
def test_a_bias_of_another_layout_is_refused(bias, field):
    with NF.use_kernels("simulate"):
        answer = NF.linear.explain(torch.zeros(2, 8), torch.zeros(8, 4), bias)["nki.linear"]
    assert (answer.ok, answer.field) == (False, field)


def test_a_contraction_that_does_not_fit_in_sbuf_is_refused_and_the_largest_that_does_is_taken(on_cores, agree, normal):
    at_most = KEPT_BYTES // (128 * 4) * 128
    with NF.use_kernels("simulate"):
        large = NF.linear.explain(torch.zeros(1, 1).expand(128, at_most + 1), torch.zeros(at_most + 1, 1))
    assert large["nki.linear"].field == "x_TH.shape[-1]" and str(at_most) in large["nki.linear"].limit
    x, w = normal(1, 300, at_most), normal(2, at_most, 2, scale=0.01)
    with on_cores(1):
        agree(NF.linear(x, w), NF.linear.reference(x, w))


def test_packed_weights_are_refused(normal):
    with NF.use_kernels("simulate"):
        answer = NF.linear.explain(normal(1, 2, 64), NF.PackedWeight(normal(2, 32, 64)))["nki.linear"]
    assert not answer.ok and answer.field == "weight_HO"


def test_inside_a_compiled_graph(on_cores, agree, normal):
    x, w, bias = normal(1, 5, 96), normal(2, 96, 80), normal(3, 80)

    def twice(x):
        return NF.linear(x, w, bias) * 2

    with on_cores(1):
        found = torch.compile(twice, fullgraph=True, backend="aot_eager")(x)
    agree(found, 2 * NF.linear.reference(x, w, bias))
