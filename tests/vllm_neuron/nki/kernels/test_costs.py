"""Counted cost of the kernels for large shapes: within 1.5 times the least that a call must do.

Decode kernels and elementwise ones are judged by bytes over HBM, prefill products by cycles of the tensor engine.
Shapes are those of one of eight ranks of an 8-billion-parameter Llama, and of head sizes and widths that divide badly.
"""

from __future__ import annotations

import pytest
import torch

from vllm_neuron.functional.on_nki.kv_write import KV_WRITE
from vllm_neuron.functional.on_nki.mlp import MLP
from vllm_neuron.functional.on_nki.norm import RMS_NORM, RMS_NORM_RESIDUAL
from vllm_neuron.functional.on_nki.projection import LINEAR, O_PROJ, QKV
from vllm_neuron.functional.on_nki.rotary import ROTARY
from vllm_neuron.nki import standin
from vllm_neuron.nki.bounds import BOUNDS, bound

LIMIT = 1.5
HIDDEN, FEATURES, INNER = 4096, 768, 1792


def ratios(wrapped, cores, **arguments):
    wrapped[cores](**arguments)
    least = bound(wrapped.name, arguments)
    assert least is not None
    return least.ratios(standin.last_counts())


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tokens", [1, 8, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_reads_each_weight_once(cores, tokens, dtype):
    x = zeros(tokens, HIDDEN, dtype=dtype)
    qkv = ratios(QKV, cores, x=x, w=zeros(HIDDEN, FEATURES, dtype=dtype))
    o = ratios(O_PROJ, cores, x=zeros(tokens, 512, dtype=dtype), w=zeros(512, HIDDEN, dtype=dtype))
    head = ratios(LINEAR, cores, x=x, w=zeros(HIDDEN, 4000, dtype=dtype))
    mlp = ratios(MLP, cores, x=x, gate_up=zeros(HIDDEN, 2 * INNER, dtype=dtype), down=zeros(INNER, HIDDEN, dtype=dtype))
    assert max(r["hbm"] for r in (qkv, o, head, mlp)) <= LIMIT
    assert mlp["hbm"] <= 1.05 and head["hbm"] <= 1.05


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tokens", [512, pytest.param(2048, marks=pytest.mark.slow)])
def test_prefill_keeps_the_tensor_engine_on_products(cores, tokens):
    x = zeros(tokens, HIDDEN)
    qkv = ratios(QKV, cores, x=x, w=zeros(HIDDEN, FEATURES))
    mlp = ratios(MLP, cores, x=x, gate_up=zeros(HIDDEN, 2 * INNER), down=zeros(INNER, HIDDEN))
    o = ratios(O_PROJ, cores, x=zeros(tokens, 512), w=zeros(512, HIDDEN))
    assert max(r["tensor"] for r in (qkv, mlp, o)) <= LIMIT
    assert mlp["tensor"] <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tokens", [1000, 2047])
@pytest.mark.parametrize("hidden, inner", [(2880, 360), (5120, 1700), (576, 1536)])
def test_prefill_of_sizes_that_are_no_multiple_of_the_tiles(cores, tokens, hidden, inner):
    mlp = ratios(MLP, cores, x=zeros(tokens, hidden), gate_up=zeros(hidden, 2 * inner), down=zeros(inner, hidden))
    assert mlp["tensor"] <= LIMIT


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("rows, size", [(1, 4096), (8, 4096), (128, 4096), (2048, 4096), (320, 128), (65536, 128)])
@pytest.mark.parametrize("plus_one", [False, True])
def test_norm(cores, rows, size, plus_one):
    x, weight = zeros(rows, size), zeros(size)
    assert ratios(RMS_NORM, cores, x=x, weight=weight, plus_one=plus_one)["hbm"] <= LIMIT
    assert ratios(RMS_NORM_RESIDUAL, cores, x=x, residual=x, weight=weight)["hbm"] <= LIMIT


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tokens", [1, 8, 64, 128, 2048])
@pytest.mark.parametrize("heads, size", [(5, 128), (10, 64), (40, 128), (72, 80)])
def test_rotary(cores, tokens, heads, size):
    assert ratios(ROTARY, cores, x=zeros(tokens, heads, size), table=zeros(tokens, 2 * size))["hbm"] <= LIMIT


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("tokens", [1, 128, 2048])
def test_cache_write(cores, tokens):
    slots = torch.arange(tokens, dtype=torch.int32).view(-1, 1)
    rows = zeros(tokens, 128)
    assert ratios(KV_WRITE, cores, pages=zeros(4096, 256), k=rows, v=rows, slots=slots)["hbm"] <= 1.01


def test_few_tokens_fill_the_partitions():
    """One token's norm and rotary take a small part of the vector cycles of one partition."""
    ratios(RMS_NORM, 1, x=zeros(1, 4096), weight=zeros(4096))
    norm = standin.last_counts().cycles["vector"]
    ratios(ROTARY, 1, x=zeros(1, 40, 128), table=zeros(1, 256))
    rotary = standin.last_counts().cycles["vector"]
    assert norm < 4096 / 4 and rotary < 40 * 128 / 4


def test_each_kernel_has_a_bound_and_an_unknown_one_has_none():
    wrapped = (LINEAR, QKV, O_PROJ, MLP, RMS_NORM, RMS_NORM_RESIDUAL, ROTARY, KV_WRITE)
    assert {w.name for w in wrapped} <= set(BOUNDS)
    assert bound("no_kernel", {}) is None


def test_bounds_by_hand():
    x, w, bias = zeros(4, 256), zeros(256, 128), zeros(128)
    found = bound("linear_kernel", {"x": x, "w": w, "bias": bias})
    assert found.hbm_bytes == 2 * (4 * 256 + 256 * 128 + 128 + 4 * 128)
    assert found.tensor_cycles == 4 * 256 * 128 / (128 * 128)
    wide = bound("linear_kernel", {"x": x.float(), "w": w.float(), "bias": None})
    assert wide.tensor_cycles == 4 * found.tensor_cycles
    gated = bound("mlp_kernel", {"x": x, "gate_up": zeros(256, 2 * 512), "down": zeros(512, 256)})
    assert gated.tensor_cycles == 4 * 256 * 512 * 3 / (128 * 128)
    assert gated.hbm_bytes == 2 * (2 * 4 * 256 + 3 * 256 * 512)
