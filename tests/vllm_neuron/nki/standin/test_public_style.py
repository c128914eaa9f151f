"""Kernels written the way public ones are: they import ``nki``, allocate by hand and hand objects around.

The public kernel library can't be installed without the Neuron package index, so no file of it runs here; these follow
its conventions: a stack allocator with addresses, configuration objects, nested ``@nki.jit``, tiled loops, asserts.
"""

from __future__ import annotations

import importlib
import sys

import ml_dtypes
import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import normal
from vllm_neuron.errors import KernelError
from vllm_neuron.nki import standin
from vllm_neuron.nki.standin import last_counts

LIBRARY = '''
from dataclasses import dataclass
from typing import Optional

import nki
import nki.isa as nisa
import nki.language as nl


def kernel_assert(condition, message):
    assert condition, f"[INTERNAL_ERROR] [NCC_INKI016] Kernel validation exception: {message}"


def div_ceil(n, d):
    return (n + d - 1) // d


@dataclass
class Scope(nl.NKIObject):
    start: int
    sections: int
    current: int = 0


class StackAllocator(nl.NKIObject):
    """Hands out addresses in SBUF; a scope with n sections reuses its space every n-th time."""

    def __init__(self, lower, upper):
        self.address = lower
        self.upper = upper
        self.scopes = []

    def open_scope(self, sections=1):
        self.scopes.append(Scope(self.address, sections))

    def increment_section(self):
        scope = self.scopes[-1]
        scope.current = scope.current + 1
        if scope.current == scope.sections:
            scope.current = 0
            self.address = scope.start

    def close_scope(self):
        self.address = self.scopes.pop().start

    def alloc_stack(self, shape, dtype, name=None):
        size = {str(nl.float32): 4, str(nl.bfloat16): 2}[str(dtype)]
        for n in shape[1:]:
            size = size * n
        kernel_assert(self.address + size <= self.upper, "Stack out of memory")
        tensor = nl.ndarray(shape=shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, self.address))
        self.address = self.address + size
        return tensor


@dataclass
class NormParameters(nl.NKIObject):
    hidden: int
    eps: float = 1e-6
    gamma: Optional[nl.NkiTensor] = None
    rows_per_tile = nl.tile_size.pmax

    def has_gamma(self):
        return self.gamma is not None


@nki.jit
def scale_rows(dst, src, factor, gamma):
    nisa.activation(dst=dst, op=nl.copy, data=src, scale=factor)
    if gamma is not None:
        nisa.tensor_tensor(dst=dst, data1=dst, data2=gamma, op=nl.multiply, engine=nisa.vector_engine)


@nki.jit(mode="trace")
def rmsnorm(x: nl.NkiTensor, parameters: NormParameters):
    rows, hidden = x.shape
    kernel_assert(hidden == parameters.hidden, f"hidden is {hidden}, not {parameters.hidden}")
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    programs, program = (1, 0) if nl.program_ndim() == 0 else (nl.num_programs(axes=0), nl.program_id(axis=0))
    share = div_ceil(rows, programs)
    sbm = StackAllocator(0, nl.tile_size.total_available_sbuf_size)
    sbm.open_scope()
    gamma = None
    if parameters.has_gamma():
        gamma = sbm.alloc_stack((nl.tile_size.pmax, hidden), nl.float32)
        nisa.dma_copy(dst=gamma, src=parameters.gamma.ap(pattern=[[0, nl.tile_size.pmax], [1, hidden]]))
    sbm.open_scope(sections=2)
    first = program * share
    last = min(rows, first + share)
    for tile in nl.affine_range(div_ceil(last - first, parameters.rows_per_tile)):
        start = first + tile * parameters.rows_per_tile
        size = min(parameters.rows_per_tile, last - start)
        data = sbm.alloc_stack((nl.tile_size.pmax, hidden), x.dtype)
        square = sbm.alloc_stack((nl.tile_size.pmax, hidden), nl.float32)
        total = sbm.alloc_stack((nl.tile_size.pmax, 1), nl.float32)
        nisa.dma_copy(dst=data[0:size, :], src=x[nl.ds(start, size), :], dge_mode=nisa.dge_mode.hwdge)
        nisa.activation_reduce(
            dst=square[0:size], op=nl.square, data=data[0:size], reduce_op=nl.add, reduce_res=total[0:size]
        )
        nisa.tensor_scalar(
            dst=total[0:size],
            data=total[0:size],
            op0=nl.multiply,
            operand0=1.0 / hidden,
            op1=nl.add,
            operand1=parameters.eps,
        )
        nisa.activation(dst=total[0:size], op=nl.rsqrt, data=total[0:size])
        scale_rows(data[0:size], data[0:size], total[0:size], None if gamma is None else gamma[0:size])
        nisa.dma_copy(dst=out[nl.ds(start, size), :], src=data[0:size, :])
        sbm.increment_section()
    sbm.close_scope()
    sbm.close_scope()
    return out


@nki.jit
def blocked_gather_product(cache, table, q):
    """q [d, heads] against the keys of the blocks in table [blocks, 1]; cache [N, 16, d]."""
    d, heads = q.shape
    blocks = table.shape[0]
    out = nl.ndarray((heads, blocks * 16), dtype=nl.float32, buffer=nl.shared_hbm)
    index = nl.ndarray((blocks, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=table)
    keys = nl.ndarray((blocks, 16 * d), dtype=cache.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=keys,
        src=cache.ap(pattern=[[16 * d, blocks], [1, 16 * d]], vector_offset=index, indirect_dim=0),
        oob_mode=nisa.oob_mode.skip,
        dge_mode=nisa.dge_mode.swdge,
    )
    query = nl.ndarray((d, heads), dtype=q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=query, src=q)
    for token in nl.sequential_range(16):
        turned = nl.ndarray((d, blocks), dtype=cache.dtype, buffer=nl.psum, address=(0, 2048 * (token % 8)))
        nisa.nc_transpose(dst=turned, data=keys[:, nl.ds(token * d, d)])
        moving = nl.ndarray((d, blocks), dtype=cache.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=moving, src=turned, engine=nisa.scalar_engine)
        scores = nl.ndarray((heads, blocks), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=query, moving=moving)
        result = nl.ndarray((heads, blocks), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=scores)
        nisa.dma_copy(dst=out.ap(pattern=[[blocks * 16, heads], [16, blocks]], offset=token), src=result)
    return out


@nki.jit
def shared_sum(x):
    """Column sums over rows that two programs share, exchanged in SBUF."""
    rows, columns = x.shape
    half = rows // nl.num_programs(0)
    me = nl.program_id(0)
    data = nl.ndarray((half, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x[nl.ds(me * half, half)])
    ones = nl.ndarray((half, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(ones, 1.0)
    psum = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(psum, ones, data)
    mine = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(mine, psum)
    if nl.num_programs(0) == 2:
        theirs = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.sbuf)
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.tensor_tensor(mine, mine, theirs, nl.add)
    out = nl.ndarray((1, columns), dtype=nl.float32, buffer=nl.shared_hbm, name="column_sums")
    if me == 0:
        nisa.dma_copy(out, mine)
    return out
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """The file above, imported with the stand-in under the public names."""
    (tmp_path / "public_style_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    standin.install()
    try:
        yield vars(importlib.import_module("public_style_library"))
    finally:
        standin.uninstall()
        sys.modules.pop("public_style_library", None)


@pytest.mark.parametrize("grid", [None, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_stack_allocated_rmsnorm(library, grid, dtype, weighted):
    x, gamma = normal(300, 256, dtype=dtype), normal(1, 256, seed=1)
    parameters = library["NormParameters"](hidden=256, gamma=gamma if weighted else None)
    kernel = library["rmsnorm"] if grid is None else library["rmsnorm"][grid]
    found = kernel(x, parameters).astype(np.float32)
    x32 = x.astype(np.float32)
    expected = x32 / np.sqrt((x32**2).mean(axis=1, keepdims=True) + 1e-6) * (gamma if weighted else 1.0)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= (1e-6 if dtype is np.float32 else 5e-3)
    # A section of a data tile, its squares and a sum, and the next tile of squares, beside the weights.
    section = 256 * (np.dtype(dtype).itemsize + 4) + 4
    assert last_counts().peak_sbuf == (1024 if weighted else 0) + section + 256 * 4


def test_an_assert_of_the_kernel_names_its_line(library):
    with pytest.raises(KernelError, match=r"hidden is 64, not 256") as caught:
        library["rmsnorm"](normal(4, 64), library["NormParameters"](hidden=256))
    assert "library.py:" in caught.value.where


def test_blocks_are_gathered_by_a_table(library):
    cache, q = normal(40, 16, 32, dtype=ml_dtypes.bfloat16), normal(32, 4, seed=1, dtype=ml_dtypes.bfloat16)
    table = np.array([[7], [39], [0], [12]], np.uint32)
    found = library["blocked_gather_product"](cache, table, q)
    keys = cache[table[:, 0]].reshape(64, 32).astype(np.float32)
    expected = q.astype(np.float32).T @ keys.T
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("grid", [1, 2])
def test_programs_exchange_sums(library, grid):
    x = normal(100, 96)
    assert np.allclose(library["shared_sum"][grid](x)[0], x.sum(axis=0), rtol=1e-4, atol=1e-4)
