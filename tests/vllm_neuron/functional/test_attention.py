"""Paged attention against dense attention over random tables, windows, caps, sinks; kernels against references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF


def dense(q, k, v, mask, scale, softcap=None, sinks=None, bias=None):
    """Attention in float64, one head after another."""
    queries, heads, _ = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(queries, heads, v.shape[-1], dtype=torch.float64)
    for head in range(heads):
        scores = q[:, head].double() @ k[:, head // group].double().t() * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[head].double()
        scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            column = torch.full((queries, 1), float(sinks[head]), dtype=torch.float64)
            weights = torch.cat((scores, column), -1).softmax(-1)[:, :-1]
        else:
            weights = scores.softmax(-1)
        out[:, head] = weights @ v[:, head // group].double()
    return out


options = st.fixed_dictionaries(
    {
        "kv_heads": st.integers(1, 3),
        "group": st.integers(1, 4),
        "size": st.sampled_from([4, 16]),
        "value_size": st.sampled_from([4, 16]),
        "length": st.integers(1, 40),
        "block": st.sampled_from([4, 8]),
        "window": st.sampled_from([None, 1, 5, 16]),
        "softcap": st.sampled_from([None, 2.0]),
        "sinks": st.booleans(),
        "bias": st.booleans(),
        "kernels": st.sampled_from(["auto", "off"]),
        "seed": st.integers(0, 999),
    }
)


@settings(max_examples=80, deadline=None)
@given(o=options, queries=st.integers(1, 9))
def test_paged_equals_dense(o: dict, queries: int) -> None:
    generator = torch.Generator().manual_seed(o["seed"])
    queries = min(queries, o["length"])
    heads, kv_heads = o["kv_heads"] * o["group"], o["kv_heads"]
    q = torch.randn(queries, heads, o["size"], generator=generator)
    k = torch.randn(o["length"], kv_heads, o["size"], generator=generator)
    v = torch.randn(o["length"], kv_heads, o["value_size"], generator=generator)
    sinks = torch.randn(heads, generator=generator) if o["sinks"] else None

    blocks_used = -(-o["length"] // o["block"])
    table_length = blocks_used + 2
    pages = torch.full((table_length * 3, o["block"], kv_heads * (o["size"] + o["value_size"])), float("nan"))
    pages[0] = 7.0
    ids = torch.randperm(table_length * 3 - 1, generator=generator)[:blocks_used] + 1
    table = torch.zeros(1, table_length, dtype=torch.int64)
    table[0, :blocks_used] = ids
    positions = torch.arange(o["length"])
    slots = ids[positions // o["block"]] * o["block"] + positions % o["block"]
    pages[ids] = 0.0
    NF.kv_write(pages, k, v, slots)

    keys = torch.arange(table_length * o["block"])
    rows = torch.arange(o["length"] - queries, o["length"])[:, None]
    mask = (keys <= rows) if o["window"] is None else (keys <= rows) & (keys > rows - o["window"])
    bias = torch.randn(1, heads, queries, keys.numel(), generator=generator) if o["bias"] else None
    near = None if bias is None else bias[..., : o["length"]]
    expected = dense(q, k, v, mask[:, : o["length"]], 0.3, o["softcap"], sinks, None if near is None else near[0])

    operation = NF.attention_decode if queries == 1 else NF.segmented_attention
    arguments = {"scale": 0.3, "softcap": o["softcap"], "sinks_N": sinks}
    with NF.use_kernels(o["kernels"]):
        paged = operation(q[None], pages, table, mask[None], kv_heads=kv_heads, bias_BNQS=bias, **arguments)
        seen = mask[None, :, : o["length"]]
        flash = NF.flash_attention(q[None], k[None], v[None], seen, bias_BNQS=near, **arguments)
    torch.testing.assert_close(paged[0].double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(flash[0].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("contiguous", [True, False])
def test_kv_write_touches_its_slots_only(contiguous: bool) -> None:
    pages = torch.zeros(6, 4, 12)
    if not contiguous:
        pages = torch.zeros(6, 2, 4, 12)[:, 1]
    k, v = torch.randn(3, 2, 4), torch.randn(3, 2, 2)
    slots = torch.tensor([5, 22, 9])
    NF.kv_write(pages, k, v, slots)
    flat = pages.reshape(24, 12)
    assert torch.equal(flat[slots], torch.cat((k.flatten(1), v.flatten(1)), 1))
    untouched = [i for i in range(24) if i not in slots.tolist()]
    assert not flat[untouched].any()


def test_F5_window_counts_the_token_itself() -> None:
    """Length 4, window 2: the rows see 1, 2, 2, 2 keys."""
    length, window = 4, 2
    positions = torch.arange(length)
    mask = (positions <= positions[:, None]) & (positions > positions[:, None] - window)
    assert mask.sum(-1).tolist() == [1, 2, 2, 2]
    v = torch.eye(length)[:, None]
    zeros = torch.zeros(1, length, 1, length)
    weights = NF.flash_attention(zeros, zeros, v[None], mask[None], scale=1.0)[0, :, 0]
    assert (weights > 0).sum(-1).tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("queries", [1, 5])
def test_a_latent_cache_has_its_values_inside_its_keys(kernels: str, queries: int) -> None:
    generator = torch.Generator().manual_seed(2)
    entries = torch.randn(13, 1, 10, generator=generator)
    q = torch.randn(queries, 6, 10, generator=generator)
    pages = torch.full((9, 4, 10), float("nan"))
    pages[0], blocks = 3.0, torch.tensor([[5, 2, 7, 4, 0]])
    pages[blocks[0]] = 0.0
    positions = torch.arange(13)
    NF.kv_write(pages, entries, None, blocks[0][positions // 4] * 4 + positions % 4)
    mask = torch.arange(20) <= torch.arange(13 - queries, 13)[:, None]
    operation = NF.attention_decode if queries == 1 else NF.segmented_attention
    with NF.use_kernels(kernels):
        found = operation(q[None], pages, blocks, mask[None], kv_heads=1, scale=0.3, latent_size=7)
    expected = dense(q, entries, entries[..., :7], mask[:, :13], 0.3)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_a_bias_on_the_scores_is_a_reason_to_leave_the_kernel() -> None:
    q, mask = torch.randn(1, 1, 2, 4), torch.ones(1, 1, 1, dtype=torch.bool)
    answer = NF.flash_attention.explain(q, q, q, mask, scale=1.0, bias_BNQS=torch.zeros(1, 2, 1, 1))
    assert [str(a) for a in answer.values()] == ["no: bias_BNQS is a tensor, the kernel takes None"]


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("keys", [6, 9])
def test_causal_hides_what_comes_after_a_query(kernels: str, keys: int) -> None:
    """With more keys than queries, the queries are the last ones."""
    q, k = torch.randn(1, 6, 4, 8), torch.randn(1, keys, 2, 8)
    mask = torch.rand(1, 6, keys) > 0.2
    mask[..., 0] = True
    own = torch.arange(keys) <= torch.arange(keys - 6, keys)[:, None]
    with NF.use_kernels(kernels):
        found = NF.flash_attention(q, k, k, mask, scale=0.5, causal=True)
        expected = NF.flash_attention(q, k, k, mask & own, scale=0.5)
    torch.testing.assert_close(found, expected)
