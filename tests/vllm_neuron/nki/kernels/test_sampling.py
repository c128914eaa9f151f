"""Argmax and top-k against the references: ties, shards of several ranks, hidden columns, any width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.errors import OperationError
from vllm_neuron.parallel.threads import run_in_threads

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])
WIDTHS = st.one_of(st.sampled_from([1, 7, 8, 15, 16, 17, 128, 1000]), st.integers(1, 9000))


@settings(max_examples=80)
@given(st.one_of(st.integers(1, 9), st.sampled_from([64, 128, 130])), WIDTHS, TYPES, CORES, st.integers(0, 99))
def test_argmax(on_cores, normal, rows, width, dtype, cores, seed):
    """In 16 bits many columns share the largest value: the first of them wins, as in torch."""
    logits = normal(seed, rows, width, dtype=dtype)
    with on_cores(cores):
        found = NF.argmax(logits, offset=5)
    assert torch.equal(found, NF.argmax.reference(logits, offset=5))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("width", [1, 8, 100, 4096, 20001])
def test_argmax_of_equal_columns_is_the_first(on_cores, width, cores):
    logits = torch.zeros(3, width)
    logits[1, width // 2 :] = 1.0
    logits[2, -1] = 2.0
    with on_cores(cores):
        assert NF.argmax(logits).tolist() == [0, width // 2, width - 1]


@pytest.mark.parametrize("cores", [1, 2])
def test_argmax_of_hidden_columns(on_cores, cores):
    """A shard without a column of its own is all minus infinity, and its index is still one of its columns."""
    logits = torch.full((2, 300), float("-inf"))
    logits[1, 299] = -3.0
    with on_cores(cores):
        assert NF.argmax(logits, offset=600).tolist() == [600, 899]


@settings(max_examples=60)
@given(st.integers(1, 9), WIDTHS, st.integers(1, 70), TYPES, CORES, st.integers(0, 99))
def test_topk(on_cores, normal, rows, width, k, dtype, cores, seed):
    """Values are torch's; which of equal logits are named is free, but each is named once."""
    k = min(k, width)
    logits = normal(seed, rows, width, dtype=dtype)
    with on_cores(cores):
        values, indices = NF.topk(logits, k, offset=7)
    expected, _ = NF.topk.reference(logits, k, offset=7)
    assert values.dtype == torch.float32 and indices.dtype == torch.int64
    assert torch.equal(values, expected)
    assert torch.equal(logits.float().gather(1, indices - 7), expected)
    assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("ranks", [2, 4])
def test_shards_of_a_vocabulary(on_cores, normal, ranks):
    """The best of all ranks, ties across shards included."""
    logits = normal(3, 5, 64 * ranks, dtype=torch.bfloat16)
    logits[0, 10] = logits[0, 64 + 3] = 9.0

    def run(group):
        own = logits[:, 64 * group.rank : 64 * group.rank + 64]
        return NF.argmax(own, offset=64 * group.rank, group=group), NF.topk(own, 6, offset=64 * group.rank, group=group)

    with on_cores(1):
        found = run_in_threads(ranks, run)
    for index, (values, indices) in found:
        assert torch.equal(index, logits.float().argmax(-1))
        assert torch.equal(values, logits.float().topk(6).values)
        assert torch.equal(logits.float().gather(1, indices), values)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: NF.argmax(torch.zeros(5)), ["logits_BV.shape", "(5,)"]),
        (lambda: NF.argmax(torch.zeros(1, 5, dtype=torch.int32)), ["logits_BV.dtype", "int32"]),
        (lambda: NF.topk(torch.zeros(1, 5), 6), ["topk.k", "6", "1 to 5"]),
        (lambda: NF.topk(torch.zeros(1, 20000), 5000), ["topk.k", "5000"]),
    ],
)
def test_refusals_name_the_limit(on_cores, call, words):
    with on_cores(1), pytest.raises(OperationError) as error:
        call()
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("rows, width, k", [(1, 262144, 256), (1, 128256, 64), (64, 128256, 64), (128, 50257, 20)])
def test_vocabularies(on_cores, normal, rows, width, k, cores):
    logits = normal(1, rows, width)
    with on_cores(cores):
        index, (values, indices) = NF.argmax(logits), NF.topk(logits, k)
    assert torch.equal(index, NF.argmax.reference(logits))
    assert torch.equal(values, NF.topk.reference(logits, k)[0])
    assert torch.equal(logits.gather(1, indices), values)
