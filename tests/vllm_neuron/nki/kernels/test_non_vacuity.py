"""A broken primitive of the stand-in fails the kernel tests: each break below changes what a kernel gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vllm_neuron.functional as NF
from vllm_neuron.nki.standin import nisa
from vllm_neuron.nki.standin.isa import matmul, vector


def overwrite(monkeypatch):
    """Products overwrite what PSUM holds instead of adding to it."""

    def broken(t, product, accumulate):
        t.array[...] = product.reshape(t.shape)
        t.mark()

    monkeypatch.setattr(matmul, "accumulate_into", broken)


def no_transpose(monkeypatch):
    """Transposes mirror their columns."""
    whole = nisa.nc_transpose

    def broken(dst, data, **keywords):
        whole(dst=dst, data=data, **keywords)
        dst.array[...] = dst.array[::-1].copy()

    monkeypatch.setattr(nisa, "nc_transpose", broken)


def reduce_less(monkeypatch):
    """Reductions leave out the last element."""
    whole = vector.reduce_free

    def broken(op, values, axes, argument):
        return whole(op, values[..., :-1], axes, argument)

    monkeypatch.setattr(vector, "reduce_free", broken)


def row_sums_less(monkeypatch):
    """The scalar engine's row sums are twice what they are."""
    whole = nisa.activation

    def broken(**keywords):
        whole(**keywords)
        if keywords.get("reduce_res") is not None:
            keywords["reduce_res"].array[...] *= 2

    monkeypatch.setattr(nisa, "activation", broken)


def wrong_rows(monkeypatch):
    """DMA reads the rows in reverse."""
    whole = nisa.dma_copy

    def broken(dst, src, **keywords):
        whole(dst=dst, src=src, **keywords)
        if dst.buffer == "sbuf" and dst.shape[0] > 1:
            dst.array[...] = dst.array[::-1].copy()

    monkeypatch.setattr(nisa, "dma_copy", broken)


def subtract(monkeypatch):
    """Sums of two tiles are differences."""
    whole = nisa.tensor_tensor

    def broken(dst, data1, data2, op, **keywords):
        whole(dst=dst, data1=data1, data2=data2, op=np.subtract if op.name == "add" else op, **keywords)

    monkeypatch.setattr(nisa, "tensor_tensor", broken)


def no_limit(monkeypatch):
    """The vector engine's second operator is left out."""
    whole = nisa.tensor_scalar

    def broken(dst, data, op0, operand0, **keywords):
        whole(dst=dst, data=data, op0=op0, operand0=operand0)

    monkeypatch.setattr(nisa, "tensor_scalar", broken)


def no_exchange(monkeypatch):
    """A core gets its own half back."""

    def broken(src, dst, **keywords):
        dst.array[...] = src.array
        dst.mark()

    monkeypatch.setattr(nisa, "sendrecv", broken)


def linear(normal, t=9):
    return NF.linear, (normal(1, t, 300), normal(2, 300, 40)), {}


def mlp(normal, t=9):
    arguments = normal(1, t, 200), normal(2, 200, 600, scale=0.1), normal(3, 300, 200)
    return NF.mlp, arguments, {"clamp_limit": 0.1}


def long_mlp(normal):
    return mlp(normal, 140)


def norm(normal):
    return NF.rms_norm, (normal(1, 300, 64), normal(2, 64)), {"eps": 1e-6}


def one_row_norm(normal):
    return NF.rms_norm, (normal(1, 3, 64), normal(2, 64)), {"eps": 1e-6}


def spread_norm(normal):
    return NF.rms_norm, (normal(1, 3, 2048), normal(2, 2048)), {"eps": 1e-6}


def rotary(normal):
    return NF.rotary, (normal(1, 5, 4, 64), normal(2, 5, 128)), {}


CASES = [
    (overwrite, linear, 1),
    (overwrite, mlp, 1),
    (overwrite, long_mlp, 1),
    (no_transpose, linear, 1),
    (no_transpose, mlp, 1),
    (reduce_less, norm, 1),
    (reduce_less, spread_norm, 1),
    (row_sums_less, one_row_norm, 1),
    (wrong_rows, linear, 1),
    (wrong_rows, norm, 1),
    (wrong_rows, rotary, 1),
    (subtract, rotary, 1),
    (no_limit, mlp, 1),
    (no_limit, long_mlp, 1),
    (no_exchange, mlp, 2),
]


@pytest.mark.parametrize("break_it, case, cores", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_broken_primitive_is_seen(monkeypatch, on_cores, agree, normal, break_it, case, cores):
    operation, arguments, keywords = case(normal)
    expected = operation.reference(*arguments, **keywords)
    with on_cores(cores):
        agree(operation(*arguments, **keywords), expected)
        break_it(monkeypatch)
        broken = operation(*arguments, **keywords)
    with pytest.raises(AssertionError, match="relative L2 error"):
        agree(broken, expected)


def test_a_broken_scatter_is_seen(monkeypatch, on_cores, normal):
    k, v, slots = normal(1, 5, 1, 64), normal(2, 5, 1, 64), torch.tensor([7, 3, 9, 20, 1])
    expected = torch.zeros(2, 16, 128)
    NF.kv_write.reference(expected, k, v, slots)
    whole = nisa.dma_copy

    def broken(dst, src, **keywords):
        if dst.place == "hbm":
            src.array[...] = src.array[::-1].copy()
        whole(dst=dst, src=src, **keywords)

    monkeypatch.setattr(nisa, "dma_copy", broken)
    pages = torch.zeros(2, 16, 128)
    with on_cores(1):
        NF.kv_write(pages, k, v, slots)
    assert not torch.equal(pages, expected)
