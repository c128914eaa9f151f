"""The stand-in's own overhead: small instructions and calls take microseconds, so whole models run in tests."""

import time

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, run, tile
from vllm_neuron.nki.standin import jit, nisa, nl

# Alone on a core each takes 2 to 15 microseconds. The limit leaves room for a machine that does other things.
LIMIT = 100e-6
CALL_LIMIT = 500e-6


def best(action, repeats=8, times=100):
    """Least mean time of a call over several rounds."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(times):
            action()
        found.append((time.perf_counter() - start) / times)
    return min(found)


INSTRUCTIONS = {
    "ndarray": lambda t, u, p, r, x: empty((8, 64)),
    "slice": lambda t, u, p, r, x: t[0:4, nl.ds(3, 8)],
    "dma_copy": lambda t, u, p, r, x: nisa.dma_copy(dst=u, src=x),
    "tensor_copy": lambda t, u, p, r, x: nisa.tensor_copy(dst=u[:, 0:32], src=t[:, 32:64]),
    "tensor_tensor": lambda t, u, p, r, x: nisa.tensor_tensor(dst=u, data1=t, data2=t, op=nl.add),
    "tensor_scalar": lambda t, u, p, r, x: nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=2.0),
    "activation": lambda t, u, p, r, x: nisa.activation(dst=u, op=nl.exp, data=t, bias=r, scale=0.5),
    "tensor_reduce": lambda t, u, p, r, x: nisa.tensor_reduce(dst=r, op=nl.add, data=t, axis=1),
    "nc_matmul": lambda t, u, p, r, x: nisa.nc_matmul(dst=p, stationary=t, moving=t[:, 0:8]),
    "nc_transpose": lambda t, u, p, r, x: nisa.nc_transpose(dst=p, data=t),
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_overhead_of_an_instruction(name):
    def kernel(x):
        t, u, r = tile(x), empty((8, 64)), empty((8, 1))
        nisa.tensor_reduce(dst=r, op=nl.add, data=t, axis=1)
        p = empty((64, 8), buffer=nl.psum)
        taken.append(best(lambda: INSTRUCTIONS[name](t, u, p, r, x)))
        return x

    taken = []
    run(kernel, normal(8, 64))
    assert taken[0] < LIMIT


def test_overhead_of_a_call():
    @jit
    def nothing(x):
        return x

    x = np.zeros((8, 64), np.float32)
    assert best(lambda: nothing(x)) < CALL_LIMIT
