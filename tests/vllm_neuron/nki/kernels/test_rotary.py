"""The rotary kernel against the reference: both styles, partial, any number of heads, few tokens and many."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])


def table(positions, width, interleaved, dtype):
    inverse = 1e4 ** (-torch.arange(0, width, 2) / width)
    return NF.rotary_table(inverse, int(positions.max()) + 1, interleaved=interleaved)[positions].to(dtype)


def both(on_cores, agree, normal, cores, t, heads, size, width, interleaved, dtype):
    positions = torch.randint(0, 2000, (t,), generator=torch.Generator().manual_seed(t))
    x, rows = normal(1, t, heads, size, dtype=dtype), table(positions, width, interleaved, dtype)
    with on_cores(cores):
        found = NF.rotary(x, rows, interleaved=interleaved)
    agree(found, NF.rotary.reference(x, rows, interleaved=interleaved))
    assert torch.equal(found[..., width:], x[..., width:])


@settings(max_examples=80)
@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 40), st.integers(0, 40), st.booleans(), TYPES, CORES)
def test_any_shape(on_cores, agree, normal, t, heads, half, rest, interleaved, dtype, cores):
    both(on_cores, agree, normal, cores, t, heads, 2 * half + rest, 2 * half, interleaved, dtype)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size, width", [(64, 64), (80, 80), (80, 32), (96, 96), (128, 128), (128, 64), (256, 256)])
@pytest.mark.parametrize("t", [1, 8, 130])
def test_head_sizes(on_cores, agree, normal, t, size, width, interleaved, cores):
    both(on_cores, agree, normal, cores, t, 40, size, width, interleaved, torch.bfloat16)


def test_a_slice_of_a_wider_product(on_cores, agree, normal):
    """Queries and keys come as a view of the q, k, v product."""
    product = normal(1, 6, 512, dtype=torch.bfloat16)
    qk = product[:, :384].unflatten(-1, (6, 64))
    assert not qk.is_contiguous()
    rows = table(torch.arange(6), 64, False, torch.bfloat16)
    with on_cores(1):
        found = NF.rotary(qk, rows)
    agree(found, NF.rotary.reference(qk, rows))


@pytest.mark.slow
@settings(max_examples=80)
@given(st.integers(1, 2048), st.integers(1, 20), st.integers(1, 128), st.integers(0, 64), st.booleans(), TYPES, CORES)
def test_any_length(on_cores, agree, normal, t, heads, half, rest, interleaved, dtype, cores):
    both(on_cores, agree, normal, cores, t, heads, 2 * half + rest, 2 * half, interleaved, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("t", [1000, 2048])
@pytest.mark.parametrize("interleaved", [False, True])
def test_large(on_cores, agree, normal, t, dtype, interleaved, cores):
    both(on_cores, agree, normal, cores, t, 72, 128, 128, interleaved, dtype)


@pytest.mark.parametrize(
    "shape, width, field",
    [
        ((2, 1, 64), 128 + 4, "table_T2R.shape[-1]"),
        ((2, 1, 64), 30, "table_T2R.shape[-1]"),
        ((2, 1, 9000), 64, "x_TND"),
        ((2, 64), 64, "x_TND.shape"),
        ((3, 1, 64), 64, "table_T2R.shape"),
        ((1, 1, 64), 64, "table_T2R.shape"),
    ],
)
def test_refusals_name_the_field(shape, width, field):
    with NF.use_kernels("simulate"):
        answer = NF.rotary.explain(torch.zeros(shape), torch.zeros(2, width))["nki.rotary"]
    assert not answer.ok and answer.field.startswith(field)
