"""``nki.isa`` of the stand-in: one function for each instruction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm_neuron.nki.standin.core import missing
from vllm_neuron.nki.standin.isa.control import (
    VirtualRegister,
    core_barrier,
    register_alloc,
    register_load,
    register_move,
    register_store,
    sendrecv,
)
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
from vllm_neuron.nki.standin.isa.gather import local_gather, nc_n_gather, nc_stream_shuffle, nonzero_with_count
from vllm_neuron.nki.standin.isa.gpsimd import affine_select, iota
from vllm_neuron.nki.standin.isa.matmul import nc_matmul, nc_transpose
from vllm_neuron.nki.standin.isa.scalar import activation, activation_reduce
from vllm_neuron.nki.standin.isa.scan import bn_aggr, bn_stats, tensor_partition_reduce, tensor_tensor_scan
from vllm_neuron.nki.standin.isa.search import max8, nc_find_index8, nc_match_replace8
from vllm_neuron.nki.standin.isa.select import range_select, select_reduce, tensor_copy_predicated
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

# The enumerations under the name that older kernels use.
constants = SimpleNamespace(
    dge_mode=dge_mode,
    dma_engine=dma_engine,
    engine=engine,
    matmul_perf_mode=matmul_perf_mode,
    nc_version=nc_version,
    oob_mode=oob_mode,
    reduce_cmd=reduce_cmd,
)


def __getattr__(name: str) -> Any:
    raise AttributeError(missing(name, "nki.isa", globals()))


__all__ = [
    "VirtualRegister",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "constants",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "engine",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "unknown_engine",
    "vector_engine",
]
