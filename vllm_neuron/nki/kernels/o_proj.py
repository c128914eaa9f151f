"""Output projection of attention: a rank's heads back to the hidden size.

Layout: x ``[T, N * E]`` (a token's heads side by side), w ``[N * E, H]``, bias ``[H]`` or None, all contiguous in HBM
and of one type (float32, bfloat16 or float16); result ``[T, H]``. The contraction runs over blocks of 128 elements
whatever the head size: heads of 64 share a block, heads of 256 take two.

Engines: DMA streams the weights, the tensor engine transposes x and multiplies, the vector engine empties PSUM.

Cost bound: for decode (up to 128 tokens) ``N * E * H`` elements from HBM, each read once; for prefill
``ceil(T / 128) * ceil(N * E / 128) * H`` cycles of the tensor engine. See :mod:`vllm_neuron.nki.kernels.tiles`.
"""

from typing import Any

from vllm_neuron.nki.api import nki
from vllm_neuron.nki.kernels.tiles import product


@nki.jit
def o_proj_kernel(x: Any, w: Any, bias: Any = None) -> Any:
    """See the module."""
    return product(x, w, bias)
