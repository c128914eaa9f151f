"""A stand-in for AWS's ``nki`` package on NumPy and ml_dtypes, to run kernels on machines without the Neuron SDK.

It is this project's own interpreter, not AWS's simulator: written from public documentation, with no knowledge of the
hardware beyond that. A kernel that runs here computes the right numbers under the documented rules; whether AWS's
compiler takes it, and how fast it is, only the real toolchain tells. Every error says that it comes from here.

Use::

    from vllm_neuron.nki.standin import nki, nl, nisa     # or install() and then `import nki`

    @nki.jit
    def double(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=tile)
        return out

    double(array)          # one program; double[2](array) runs two, in two threads with shared HBM

What it checks: partitions, free sizes, matmul tiles, types and buffers of each engine, start partitions, room in SBUF
and PSUM, elements that were never written, writes outside, reads of what a tensor at an overlapping manual address
overwrote, and of shared HBM that the other program wrote without a barrier. What it does not model: semaphores and
ordering between engines, approximations of the scalar engine, MX types. It counts instructions, DMA bytes, matmul
cycles and peak memory of each call (``counting``, ``last_counts``); ``vllm_neuron.nki.cost`` and
``vllm_neuron.nki.trace`` read the counts.

Tests that break a primitive to see a kernel test fail replace the function in one place, for instance
``monkeypatch.setattr(nisa, "nc_transpose", broken)``: kernels reach primitives through the module at each call.
Accumulation is ``vllm_neuron.nki.standin.isa.matmul.accumulate_into``, reduction
``vllm_neuron.nki.standin.isa.vector.reduce_free``.
"""

from __future__ import annotations

from vllm_neuron.nki.standin import isa as nisa
from vllm_neuron.nki.standin import language as nl
from vllm_neuron.nki.standin import package as nki
from vllm_neuron.nki.standin.counts import Collected, Counts, Event, counting, last_counts
from vllm_neuron.nki.standin.install import install, uninstall
from vllm_neuron.nki.standin.launch import Kernel, jit, simulate
from vllm_neuron.nki.standin.tensor import Tensor

__all__ = [
    "Collected",
    "Counts",
    "Event",
    "Kernel",
    "Tensor",
    "counting",
    "install",
    "jit",
    "last_counts",
    "nisa",
    "nki",
    "nl",
    "simulate",
    "uninstall",
]
