"""``x @ w + bias``, the matrix product of layers that have no kernel of their own (the head among them).

Layout: x ``[T, H]``, w ``[H, O]`` (rows are inputs), bias ``[O]`` or None, all contiguous in HBM and of one type
(float32, bfloat16 or float16); result ``[T, O]`` in that type, accumulated in float32.

Engines: DMA streams the weights, the tensor engine transposes x and multiplies, the vector engine empties PSUM.

Cost bound: up to 128 tokens the weights' bytes, ``H * O`` elements from HBM, each read once; above that
``ceil(T / 128) * ceil(H / 128) * O`` cycles of the tensor engine. See :mod:`vllm_neuron.nki.kernels.tiles`.
"""

from typing import Any

from vllm_neuron.nki.api import nki
from vllm_neuron.nki.kernels.tiles import product


@nki.jit
def linear_kernel(x: Any, w: Any, bias: Any = None) -> Any:
    """See the module."""
    return product(x, w, bias)
