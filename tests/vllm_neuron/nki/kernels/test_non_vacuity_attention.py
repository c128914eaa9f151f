"""A broken primitive of the stand-in fails the tests of attention, sampling and mixtures: each break is one below."""

from __future__ import annotations

import pytest
import torch

import vllm_neuron.functional as NF
from tests.vllm_neuron.nki.kernels.attention_cases import paged, prefill_mask
from vllm_neuron.nki.api import nisa, nl


def patched(monkeypatch, name, change):
    """``nisa.name`` with other keywords: ``change`` gets them and returns those that are used."""
    whole = getattr(nisa, name)
    monkeypatch.setattr(nisa, name, lambda **keywords: whole(**change(dict(keywords))))


def overwrite(monkeypatch):
    """Products overwrite what PSUM holds instead of adding to it."""
    patched(monkeypatch, "nc_matmul", lambda k: k | {"accumulate": False})


def mirrored(monkeypatch):
    """Transposes mirror their partitions."""
    whole = nisa.nc_transpose

    def broken(dst, **keywords):
        whole(dst=dst, **keywords)
        dst.array[...] = dst.array[::-1].copy()

    monkeypatch.setattr(nisa, "nc_transpose", broken)


def first_part(monkeypatch):
    """Every part of the array gets the keys of the first one."""

    def change(keywords):
        m = keywords["moving"]
        if m.start >= m.storage.row:
            keywords["moving"] = type(m)(m.storage, m.shape, m.steps, m.start % m.storage.row, m.dtype)
        return keywords

    patched(monkeypatch, "nc_matmul", change)


def swapped_blocks(monkeypatch):
    """The transposing DMA exchanges its blocks."""
    whole = nisa.dma_transpose

    def broken(dst, **keywords):
        whole(dst=dst, **keywords)
        dst.array[...] = dst.array[:, ::-1].copy()

    monkeypatch.setattr(nisa, "dma_transpose", broken)


def shown_as_zero(monkeypatch):
    """What a mask hides counts as a score of 0."""
    patched(monkeypatch, "select_reduce", lambda k: k | {"on_false": 0.0})


def all_kept(monkeypatch):
    """affine_select keeps what it compares away."""
    whole = nisa.tensor_copy
    monkeypatch.setattr(nisa, "affine_select", lambda dst, on_true_tile, **_: whole(dst=dst, src=on_true_tile))


def reduced_less(monkeypatch):
    """Reductions leave out the last element."""
    patched(monkeypatch, "tensor_reduce", lambda k: k | {"data": k["data"][..., : max(1, k["data"].shape[-1] - 1)]})


def smallest(monkeypatch):
    """Maxima are minima."""
    patched(monkeypatch, "tensor_reduce", lambda k: k | ({"op": nl.minimum} if k["op"] is nl.maximum else {}))


def no_scale(monkeypatch):
    """The scalar engine leaves its factor out."""
    patched(monkeypatch, "activation", lambda k: k | {"scale": 1.0})


def no_row_scale(monkeypatch):
    """The same of its form with row sums."""
    patched(monkeypatch, "activation_reduce", lambda k: k | {"scale": 1.0})


def first_rows(monkeypatch):
    """Gathers read the rows from 0 on."""

    def ordered(keywords):
        source = keywords["src"]
        if getattr(source, "vector", None) is not None:
            indices = source.vector.array
            indices[...] = torch.arange(len(indices)).view(indices.shape).numpy()
        return keywords

    patched(monkeypatch, "dma_copy", ordered)


def first_expert(monkeypatch):
    """Addresses from a tensor are left out."""

    def change(keywords):
        source = keywords["src"]
        if getattr(source, "scalar", None) is not None:
            source.scalar.array[...] = 0
        return keywords

    patched(monkeypatch, "dma_copy", change)


def next_index(monkeypatch):
    """Found indices are one too high."""
    whole = nisa.nc_find_index8

    def broken(dst, **keywords):
        whole(dst=dst, **keywords)
        dst.array[...] += 1

    monkeypatch.setattr(nisa, "nc_find_index8", broken)


def none_replaced(monkeypatch):
    """What was found stays in its place."""
    monkeypatch.setattr(nisa, "nc_match_replace8", lambda **_: None)


def no_exchange(monkeypatch):
    """A core gets its own half back."""

    def broken(src, dst, **_):
        dst.array[...] = src.array
        dst.mark()

    monkeypatch.setattr(nisa, "sendrecv", broken)


def flash(normal, dtype=torch.float32, length=300, **options):
    q, k = normal(1, 1, length, 2, 160, dtype=dtype), normal(2, 1, length, 1, 160, dtype=dtype)
    v = normal(3, 1, length, 1, 32, dtype=dtype)
    mask = options.pop("mask", prefill_mask(length))
    return NF.flash_attention, (q, k, v, mask), {"scale": 0.08} | options


def flash_bf16(normal):
    return flash(normal, torch.bfloat16, causal=True)


def flash_64(normal):
    q, k, v = normal(1, 1, 300, 3, 64), normal(2, 1, 300, 1, 64), normal(3, 1, 300, 1, 64)
    return NF.flash_attention, (q, k, v, prefill_mask(300)), {"scale": 0.125, "causal": True}


def flash_bound(normal):
    return flash(normal, mask=torch.ones(1, 300, 300, dtype=torch.bool), causal=True)


def decode(normal):
    cache = paged(normal, 1, 24, 16, 2 * (160 + 32), 1, torch.float32, window=200)
    q = normal(1, 1, 1, 4, 160)
    return NF.attention_decode, (q, cache.pages, cache.blocks_BM, cache.mask_BQS), {"kv_heads": 2, "scale": 0.08}


def high_decode(normal):
    """Scores far above what exp takes, so that a wrong maximum shows."""
    operation, arguments, keywords = decode(normal)
    return operation, arguments, keywords | {"scale": 2.0}


def segmented(normal):
    cache = paged(normal, 1, 24, 16, 160 + 32, 150, torch.float32)
    q = normal(1, 1, 150, 2, 160)
    return NF.segmented_attention, (q, cache.pages, cache.blocks_BM, cache.mask_BQS), {"kv_heads": 1, "scale": 0.08}


def segmented_48(normal):
    cache = paged(normal, 1, 24, 16, 48 + 32, 150, torch.bfloat16)
    q = normal(1, 1, 150, 3, 48, dtype=torch.bfloat16)
    return NF.segmented_attention, (q, cache.pages, cache.blocks_BM, cache.mask_BQS), {"kv_heads": 1, "scale": 0.14}


def mixture(normal):
    tensors = normal(1, 3, 200), torch.ones(3, 2), torch.tensor([[1, 4], [2, 5], [3, 1]])
    return NF.moe_experts, (*tensors, normal(2, 6, 400, 200, scale=0.1), normal(3, 6, 200, 200)), {}


def largest(normal):
    return NF.argmax, (normal(1, 4, 3000),), {}


def large(normal):
    return NF.topk, (normal(1, 4, 3000), 20), {}


CASES = [
    *((overwrite, case, 1) for case in (flash, decode, segmented, mixture)),
    *((mirrored, case, 1) for case in (flash, decode, segmented, mixture)),
    *((mirrored, case, 1) for case in (flash_64, segmented_48)),
    *((first_part, case, 1) for case in (flash_64, segmented_48)),
    (swapped_blocks, flash_bf16, 1),
    *((shown_as_zero, case, 1) for case in (flash, decode, segmented)),
    *((all_kept, case, 1) for case in (flash_bound, high_decode)),
    (reduced_less, decode, 1),
    (smallest, largest, 1),
    *((no_row_scale, case, 1) for case in (flash, segmented)),
    (no_scale, decode, 1),
    *((first_rows, case, 1) for case in (decode, segmented)),
    (first_expert, mixture, 1),
    *((next_index, case, 1) for case in (largest, large)),
    (none_replaced, large, 1),
    *((no_exchange, case, 2) for case in (decode, mixture, largest, large)),
]


def same(found, expected):
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    return all(
        (a.float() - b.float()).norm() <= 5e-3 * b.float().norm() if a.is_floating_point() else torch.equal(a, b)
        for a, b in pairs
    )


@pytest.mark.parametrize("break_it, case, cores", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_broken_primitive_is_seen(monkeypatch, on_cores, normal, break_it, case, cores):
    operation, arguments, keywords = case(normal)
    expected = operation.reference(*arguments, **keywords)
    with on_cores(cores):
        assert same(operation(*arguments, **keywords), expected)
        break_it(monkeypatch)
        broken = operation(*arguments, **keywords)
    assert not same(broken, expected)
