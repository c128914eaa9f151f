"""Write each token's key and value into its slot of the paged cache, in place.

Layout: pages ``[S, W]`` (slots, ``W = K * (D + E)``: a slot's keys, then its values), k ``[T, K * D]``, v
``[T, K * E]`` or None (a latent cache: ``W = K * D``), slots ``[T, 1]`` int32 in 0 to S - 1. k and v are of one type,
pages of that or another of float32, bfloat16 and float16; all contiguous in HBM. Several tokens may name one slot
(padding does, in the null block): one of them stays there.

On chip a partition holds one token's whole row, so that a slot is one write of W contiguous elements.

Engines: DMA (the write is a scatter by slot), vector when the types differ.

Cost bound: ``2 * T * W`` elements of DMA and T indices.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.tiles import P, share


@nki.jit
def kv_write_kernel(pages: Any, k: Any, v: Any, slots: Any) -> Any:
    """See the module; returns ``pages``."""
    tokens = k.shape[0]
    width = pages.shape[1]
    start, stop = share(tokens, 1)
    for token in range(start, stop, P):
        count = min(P, stop - token)
        index = nl.ndarray((count, 1), dtype=slots.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=index, src=slots[nl.ds(token, count), :])
        row = load_rows(k, v, token, count, width)
        if row.dtype != pages.dtype:
            cast = nl.ndarray((count, width), dtype=pages.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=cast, src=row)
            row = cast
        place = pages.ap(pattern=[[width, count], [1, width]], offset=0, vector_offset=index, indirect_dim=0)
        nisa.dma_copy(dst=place, src=row)
    return pages


def load_rows(k: Any, v: Any, token: int, count: int, width: int) -> Any:
    """Keys and values of ``count`` tokens side by side, ``[count, W]``."""
    keys = k.shape[1]
    row = nl.ndarray((count, width), dtype=k.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row[:, 0:keys], src=k[nl.ds(token, count), :])
    if v != None:
        nisa.dma_copy(dst=row[:, keys:width], src=v[nl.ds(token, count), :])
    return row
