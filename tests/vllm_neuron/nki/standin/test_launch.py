"""Calling kernels: grids, arguments, results, Python errors, registers."""

import ml_dtypes
import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import jit, last_counts, nisa, nl


@jit
def split_rows(x):
    """Each program copies its half of the rows."""
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs(0)
    at = nl.ds(nl.program_id(0) * rows, rows)
    t = empty((rows, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=t, src=x[at])
    nisa.dma_copy(dst=result[at], src=t)
    return result


@pytest.mark.parametrize("call", [split_rows, split_rows[1], split_rows[2], split_rows[(2,)]])
def test_one_and_two_programs_give_the_same(call):
    x = normal(8, 4)
    assert np.array_equal(call(x), x)
    assert last_counts().dma_bytes == {"hbm>sbuf": x.nbytes, "sbuf>hbm": x.nbytes}


@pytest.mark.parametrize("grid", [0, 3, -1, "2", 2.0, True, (1, 2), None])
def test_other_grids_are_refused(grid):
    with pytest.raises(KernelError, match=r"split_rows: grid.*1 or 2") as caught:
        split_rows[grid](normal(8, 4))
    assert caught.value.value == grid
    assert "test_launch.py" in caught.value.where


def test_program_identity():
    seen = []

    @jit
    def who(x):
        seen.append((nl.program_id(0), nl.num_programs(0), nl.program_ndim()))
        return x

    who(normal(2, 2))
    who[1](normal(2, 2))
    who[2](normal(2, 2))
    assert seen[:2] == [(0, 1, 0), (0, 1, 1)]
    assert sorted(seen[2:]) == [(0, 2, 1), (1, 2, 1)]


def test_a_kernel_inside_a_kernel_is_a_plain_function():
    @jit
    def inner(t, factor):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)

    @jit
    def outer(x):
        t = tile(x)
        inner(t, 2.0)
        inner[2](t, factor=3.0)
        return out(t)

    x = normal(4, 4)
    assert np.array_equal(outer(x), x * np.float32(2) * np.float32(3))


def test_results_keep_their_structure_and_inputs_are_mutated_in_place():
    @jit(mode="trace")
    def kernel(x, cache, items, options):
        nisa.dma_copy(dst=cache[0], src=x[0])
        return [out(tile(x)), (cache, out(tile(items[0]))), options["scale"]]

    x, cache = normal(2, 4), np.zeros((3, 4), np.float32)
    copied, (mutated, item), scale = kernel(x, cache, items=[x], options={"scale": 0.5})
    assert np.array_equal(copied, x) and np.array_equal(item, x) and scale == 0.5
    assert np.shares_memory(mutated, cache)
    assert np.array_equal(cache[0], x[0]) and not cache[1:].any()


def test_types_of_arrays():
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, np.int8, np.uint8, np.int32, bool):
        x = np.arange(8).reshape(2, 4).astype(dtype)
        result = run(lambda a: out(tile(a)), x)
        assert result.dtype == x.dtype and np.array_equal(result, x)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 4)), r"argument|x.*float64.*element type"),
        (np.zeros((4, 4), np.int64), "element type"),
        (np.zeros((4, 4), np.float32).T[:3], "contiguous"),
    ],
)
def test_arrays_that_no_kernel_takes(array, message):
    with pytest.raises(KernelError, match=message) as caught:
        split_rows(array)
    assert caught.value.argument == "x"


def test_a_kernel_that_returns_nothing_or_a_tile():
    with pytest.raises(KernelError, match=r"return: got None.*shared_hbm"):
        run(lambda a: None, normal(2, 2))
    with pytest.raises(KernelError, match=r"return.*sbuf.*in nl.shared_hbm"):
        run(lambda a: tile(a), normal(2, 2))


def test_python_error_in_a_kernel_names_the_line():
    def broken(x):
        t = tile(x)
        return t.no_such_method()

    with pytest.raises(KernelError, match=r"AttributeError.*no_such_method") as caught:
        run(broken, normal(2, 2))
    line = broken.__code__.co_firstlineno + 2
    assert caught.value.where.endswith(f"test_launch.py:{line}")
    assert isinstance(caught.value.__cause__, AttributeError)
    # The thread is free for the next kernel.
    assert split_rows(normal(8, 4)).shape == (8, 4)


def test_wrong_arguments_of_a_kernel():
    with pytest.raises(KernelError, match=r"TypeError.*unexpected"):
        split_rows(normal(8, 4), scale=2)


def test_instructions_outside_a_kernel():
    with pytest.raises(KernelError, match="inside a kernel"):
        nl.ndarray((2, 2), nl.float32)


def test_registers_and_dynamic_loops():
    def body(x, n):
        count = nisa.register_alloc()
        nisa.register_load(count, n)
        total = empty((1, 4))
        nisa.memset(dst=total, value=0.0)

        def add(_):
            nisa.tensor_tensor(dst=total, data1=total, data2=data, op=nl.add)

        data = tile(x)
        for i in nl.dynamic_range(count):
            add(i)
        nl.fori_loop(0, count, add)
        nl.fori_loop(0, 10, add, step=5)
        left = nisa.register_alloc(2)

        def count_down(register):
            add(None)
            result = nisa.register_alloc()
            nisa.register_move(result, int(register) - 1)
            return result

        nl.while_loop(left, count_down)
        stored = empty((1, 1), nl.int32)
        nisa.register_store(stored, count)
        return out(total), out(stored)

    x = np.ones((1, 4), np.float32)
    total, stored = run(body, x, np.array([[3]], np.int32))
    assert (total == 3 + 3 + 2 + 2).all() and stored[0, 0] == 3


def test_register_that_was_never_loaded():
    def body(x):
        for _ in nl.dynamic_range(nisa.register_alloc()):
            pass
        return x

    with pytest.raises(KernelError, match="never loaded"):
        run(body, normal(2, 2))


def test_shared_constants():
    def body(x):
        mine = empty((5, 5), nl.bfloat16)
        assert nl.shared_identity_matrix(5, dtype=nl.bfloat16, dst=mine) is mine
        assert nl.shared_identity_matrix(3).buffer == nl.sbuf
        return out(mine), out(tile(nl.shared_constant(np.arange(6).reshape(2, 3), dtype=nl.float32)))

    identity, numbers = run(body, normal(2, 2))
    assert np.array_equal(identity.astype(np.float32), np.eye(5))
    assert np.array_equal(numbers, np.arange(6).reshape(2, 3))


def test_regions_compare_as_public_kernels_compare_them():
    def body(x):
        t, p = empty((2, 2)), empty((2, 2), buffer=nl.psum)
        private = nl.ndarray((2, 2), dtype=nl.float32, buffer=nl.hbm)
        shared = nl.ndarray((2, 2), dtype=nl.float32, buffer="shared_hbm")
        assert t.buffer == nl.sbuf and p.buffer == nl.psum != nl.sbuf
        assert private.buffer == nl.private_hbm == nl.hbm and shared.buffer == nl.shared_hbm != nl.hbm
        assert all(h.buffer in (nl.hbm, nl.shared_hbm, nl.private_hbm) for h in (x, private, shared))
        return x

    run(body, normal(2, 2))
