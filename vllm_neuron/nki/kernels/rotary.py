"""Rotary position embedding of a rank's heads, in the half and the interleaved style, whole or partial.

Layout: x ``[T, N, D]`` and table ``[T, 2 * R]`` with ``R <= D``, contiguous in HBM and of one type (float32, bfloat16
or float16): a token's row holds R cosines and R sines. In the half style the sines of the first half come negated.
Result ``[T, N, D]``; elements from R on pass through.

On chip a partition holds one token and ``N / g`` of its heads, ``[g * T, N / g, D]``, so that few tokens still fill the
partitions; the table's row is then loaded g times. g divides N and stays below ``N / 2``.

Engines: vector (four products and a sum), DMA.

Cost bound: ``2 * T * N * D + 2 * T * R`` elements of DMA; the repeated table adds at most half of that, and nothing
from 128 tokens on.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.tiles import P, item, share

# Bytes a partition of one tile of x.
TILE_BYTES = 24 * 1024


@nki.jit
def rotary_kernel(x: Any, table: Any, interleaved: bool = False) -> Any:
    """See the module: x ``[T, N, D]``, table ``[T, 2 * R]`` -> ``[T, N, D]``."""
    tokens, heads, size = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    start, stop = share(tokens, 1)
    if stop > start:
        groups = head_groups(stop - start, heads, table.shape[1], size)
        rows = min(stop - start, P // groups)
        each = heads // groups
        most = max(1, min(each, TILE_BYTES // (size * item(x.dtype))))
        for token in range(start, stop, rows):
            count = min(rows, stop - token)
            angles = load_angles(table, token, count, groups)
            for head in range(0, each, most):
                turn(out, x, angles, token, count, groups, head, min(most, each - head), interleaved)
    return out


def head_groups(tokens: int, heads: int, width: int, size: int) -> int:
    """The largest divisor of the heads that keeps ``groups * tokens`` partitions and the table's repeats in bounds."""
    best = 1
    for groups in range(2, heads + 1):
        repeated = (groups - 1) * width
        if heads % groups == 0 and groups * tokens <= P and 2 * repeated <= 2 * heads * size + width:
            best = groups
    return best


def load_angles(table: Any, token: int, count: int, groups: int) -> Any:
    """Rows of the table for ``count`` tokens, once for each group of heads: ``[groups * count, 2 * R]``."""
    width = table.shape[1]
    angles = nl.ndarray((groups * count, width), dtype=table.dtype, buffer=nl.sbuf)
    pattern = [[0, groups], [width, count], [1, width]]
    nisa.dma_copy(dst=angles, src=table.ap(pattern=pattern, offset=token * width))
    return angles


def turn(
    out: Any, x: Any, angles: Any, token: int, count: int, groups: int, head: int, each: int, interleaved: bool
) -> None:
    """Heads ``[head, head + each)`` of every group, ``count`` tokens from ``token``."""
    _tokens, heads, size = x.shape
    width = angles.shape[1] // 2
    p = groups * count
    pattern = [[heads // groups * size, groups], [heads * size, count], [size, each], [1, size]]
    offset = token * heads * size + head * size
    data = nl.ndarray((p, each, size), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
    cos = angles[:, 0:width].expand_dim(1).broadcast(dim=1, size=each)
    sin = angles[:, width : 2 * width].expand_dim(1).broadcast(dim=1, size=each)
    straight = nl.ndarray((p, each, width), dtype=x.dtype, buffer=nl.sbuf)
    crossed = nl.ndarray((p, each, width), dtype=x.dtype, buffer=nl.sbuf)
    turning = data[:, :, 0:width]
    nisa.tensor_tensor(dst=straight, data1=turning, data2=cos, op=nl.multiply)
    if interleaved:
        cross(crossed[:, :, 0:width:2], turning[:, :, 1:width:2], sin[:, :, 0:width:2])
        cross(crossed[:, :, 1:width:2], turning[:, :, 0:width:2], sin[:, :, 1:width:2])
        subtract_and_add(turning, straight, crossed, width)
    else:
        half = width // 2
        cross(crossed[:, :, 0:half], turning[:, :, half:width], sin[:, :, 0:half])
        cross(crossed[:, :, half:width], turning[:, :, 0:half], sin[:, :, half:width])
        nisa.tensor_tensor(dst=turning, data1=straight, data2=crossed, op=nl.add)
    nisa.dma_copy(dst=out.ap(pattern=pattern, offset=offset), src=data)


def cross(dst: Any, other: Any, sin: Any) -> None:
    """The other element of each pair, times the sine."""
    nisa.tensor_tensor(dst=dst, data1=other, data2=sin, op=nl.multiply)


def subtract_and_add(dst: Any, straight: Any, crossed: Any, width: int) -> None:
    """First elements of the pairs: ``straight - crossed``; second ones: ``straight + crossed``."""
    nisa.tensor_tensor(
        dst=dst[:, :, 0:width:2], data1=straight[:, :, 0:width:2], data2=crossed[:, :, 0:width:2], op=nl.subtract
    )
    nisa.tensor_tensor(
        dst=dst[:, :, 1:width:2], data1=straight[:, :, 1:width:2], data2=crossed[:, :, 1:width:2], op=nl.add
    )
