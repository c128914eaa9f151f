"""``nki.isa`` of the stand-in: one function for each instruction."""

from __future__ import annotations

from vllm_neuron.nki.standin.isa.dma import dma_compute, dma_copy, dma_transpose
from vllm_neuron.nki.standin.isa.enums import (
    dge_mode,
    dma_engine,
    engine,
    get_nc_version,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from vllm_neuron.nki.standin.isa.gpsimd import affine_select, iota
from vllm_neuron.nki.standin.isa.scalar import activation, activation_reduce
from vllm_neuron.nki.standin.isa.tensor_engine import nc_matmul, nc_transpose
from vllm_neuron.nki.standin.isa.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_reduce,
    tensor_scalar,
    tensor_scalar_reduce,
    tensor_tensor,
)

# Older names of the engines.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown

__all__ = [
    "activation",
    "activation_reduce",
    "affine_select",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "engine",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "matmul_perf_mode",
    "memset",
    "nc_matmul",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "reciprocal",
    "reduce_cmd",
    "scalar_engine",
    "scalar_tensor_tensor",
    "tensor_copy",
    "tensor_engine",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "unknown_engine",
    "vector_engine",
]
