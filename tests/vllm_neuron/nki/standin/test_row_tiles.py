"""Matmuls on different row tiles of the tensor engine: what they compute, and when their cycles count once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.cost import TRN2
from vllm_neuron.nki.standin import counting, last_counts, nisa, nl
from vllm_neuron.nki.trace import schedule

COLUMNS = 256
ONE = 4 * COLUMNS


def halves(*calls, between=None, one_bank=False, declared=True):
    """A kernel of products of 64 rows in fp32; a call is (start of the tile, partition of the operands, columns)."""

    def kernel(s, m):
        left, right = empty((128, 32)), empty((128, COLUMNS))
        nisa.dma_copy(dst=left, src=s)
        nisa.dma_copy(dst=right, src=m)
        p = empty((32, len(calls), COLUMNS if one_bank else 512), buffer=nl.psum)
        for i, (start, at, columns) in enumerate(calls):
            if i and between:
                between(left)
            options = {"tile_position": (start, 0), "tile_size": (64, 128)} if declared else {}
            nisa.nc_matmul(
                dst=p[:, i, :columns],
                stationary=left[at : at + 64, :],
                moving=right[at : at + 64, :columns],
                accumulate=False,
                **options,
            )
        if between:
            return s
        return tuple(out(p[:, i, :columns]) for i, (_, _, columns) in enumerate(calls))

    return kernel


def cycles(kernel):
    run(kernel, normal(128, 32), normal(128, COLUMNS, seed=1))
    return last_counts().matmul_cycles


UP, DOWN = (0, 0, COLUMNS), (64, 64, COLUMNS)


def test_two_halves_take_as_long_as_one_and_multiply_apart():
    a, b = normal(128, 32), normal(128, COLUMNS, seed=1)
    up, down = run(halves(UP, DOWN), a, b)
    assert np.allclose(up, a[:64].T @ b[:64], rtol=1e-5, atol=1e-4)
    assert np.allclose(down, a[64:].T @ b[64:], rtol=1e-5, atol=1e-4)
    counts = last_counts()
    assert counts.matmul_cycles == counts.cycles["tensor"] == ONE
    assert counts.instructions["tensor"] == 2


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((UP, UP), 2 * ONE),
        ((UP, DOWN, UP), 2 * ONE),
        ((UP, DOWN, UP, DOWN), 2 * ONE),
        ((UP, DOWN, DOWN, UP), 2 * ONE),
        ((UP, (64, 64, 128)), ONE),
        (((0, 0, 128), DOWN), ONE),
        ((UP, (64, 0, COLUMNS)), 2 * ONE),
        (((64, 0, COLUMNS), UP), 2 * ONE),
    ],
)
def test_rows_in_use_must_be_free_first(calls, expected):
    """The last two: operands that aren't in the partitions which feed the tile's rows."""
    assert cycles(halves(*calls)) == expected


def test_tiles_must_be_declared_and_write_to_banks_of_their_own():
    assert cycles(halves(UP, DOWN, declared=False)) == 2 * ONE
    assert cycles(halves(UP, DOWN, one_bank=True)) == 2 * ONE


def test_another_instruction_of_the_engine_ends_it():
    def transpose(x):
        nisa.nc_transpose(dst=empty((32, 128), buffer=nl.psum), data=x, engine=nisa.engine.tensor)

    def copy(x):
        nisa.tensor_copy(dst=empty((128, 32)), src=x)

    assert cycles(halves(UP, DOWN, between=transpose)) == 2 * ONE
    assert cycles(halves(UP, DOWN, between=copy)) == ONE


@pytest.mark.parametrize(("sizes", "expected"), [((32, 32, 32, 32), 512), ((32, 32, 64), 1024)])
def test_quarters(sizes, expected):
    """Four of 32 rows at once; tiles of unlike size wait."""

    def kernel(m):
        x = empty((128, 512), dtype="bfloat16")
        nisa.dma_copy(dst=x, src=m)
        p = empty((64, len(sizes), 512), buffer=nl.psum)
        at = 0
        for i, size in enumerate(sizes):
            part = x[at : at + size, :]
            nisa.nc_matmul(
                dst=p[:, i, :], stationary=part[:, :64], moving=part, tile_position=(at, 0), tile_size=(size, 128)
            )
            at += size
        return m

    run(kernel, normal(128, 512))
    assert last_counts().matmul_cycles == expected


def test_quarters_came_with_trn2(monkeypatch):
    def kernel(m):
        x = empty((32, 64))
        nisa.dma_copy(dst=x, src=m)
        p = empty((64, 64), buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=x, moving=x, tile_position=(0, 0), tile_size=(32, 128))
        return out(p)

    run(kernel, normal(32, 64))
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    with pytest.raises(KernelError, match="64 or 128 before trn2"):
        run(kernel, normal(32, 64))


def test_the_trace_shows_halves_at_the_same_time():
    with counting(events=True) as collected:
        run(halves(UP, DOWN, UP), normal(128, 32), normal(128, COLUMNS, seed=1))
    up, down, last = [p for p in schedule(collected.calls[0], TRN2) if p[0].name == "nc_matmul"]
    assert up[1] == pytest.approx(down[1]) and up[2] == pytest.approx(down[2]) == pytest.approx(ONE / 2.4e9)
    assert last[1] == pytest.approx(up[1] + up[2])
    assert [event.shared for event, _, _ in (up, down, last)] == [0, ONE, 0]
