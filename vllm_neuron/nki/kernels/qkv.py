"""Queries, keys and values of a rank in one matrix product.

Layout: x ``[T, H]``, w ``[H, F]`` with ``F = N * D + K * D + K * E`` (columns of q, k, v side by side), bias ``[F]`` or
None, all contiguous in HBM and of one type (float32, bfloat16 or float16); result ``[T, F]``. Heads are columns, so any
head size and any number of KV heads fit.

Engines: DMA streams the weights, the tensor engine transposes x and multiplies, the vector engine empties PSUM.

Cost bound: for decode (up to 128 tokens) ``H * F`` elements from HBM, each read once; for prefill
``ceil(T / 128) * ceil(H / 128) * F`` cycles of the tensor engine. See :mod:`vllm_neuron.nki.kernels.tiles`.
"""

from typing import Any

from vllm_neuron.nki.api import nki
from vllm_neuron.nki.kernels.tiles import product


@nki.jit
def qkv_kernel(x: Any, w: Any, bias: Any = None) -> Any:
    """See the module."""
    return product(x, w, bias)
