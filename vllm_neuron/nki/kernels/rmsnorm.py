"""Root-mean-square normalisation of rows, with a weight, with ``1 + weight``, or without; also of a sum.

Layout: x ``[R, D]`` and weight ``[D]`` (or None), contiguous in HBM and of one type (float32, bfloat16 or float16);
result ``[R, D]`` in that type. Rows are tokens, or heads of tokens for a norm over a head. ``rmsnorm_residual_kernel``
also takes a residual ``[R, D]`` and gives the norm of ``x + residual`` and that sum, rounded once as a layer would.

Two ways, by the number of rows:

- many: 128 partitions of ``g`` rows each, ``[128, g, D]``; the mean runs along the free dimension.
- up to 32 rows of at least 1,024 elements: each row is spread over the partitions, ``[128, R, D / 128]``, since one
  partition would take D cycles an instruction; the sum over partitions is a product with a matrix of ones.

Engines: scalar (squares with row sums, rsqrt), vector (the products), tensor (the sum over partitions), DMA.

Rounding follows the reference: the mean square in float32; the normed row is cast, then multiplied by the weight; with
``1 + weight`` it is multiplied in float32 and cast once.

Cost bound: ``2 * R * D + D`` elements of DMA. The weight is repeated on ``min(128, R)`` partitions for many rows, so up
to 1.5 times that at 128 rows, and 1.03 times at 2,048.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.tiles import P, share

# Elements a partition that one tile holds when it has several rows a partition, and in the spread layout.
TILE = 4096
SPREAD_ROWS = 32
SPREAD_SIZE = 1024


@nki.jit
def rmsnorm_kernel(x: Any, weight: Any = None, eps: float = 1e-6, plus_one: bool = False) -> Any:
    """See the module: x ``[R, D]``, weight ``[D]`` or None -> ``[R, D]``."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    normalize(out, x, weight, eps, plus_one, None, None)
    return out


@nki.jit
def rmsnorm_residual_kernel(
    x: Any, residual: Any, weight: Any = None, eps: float = 1e-6, plus_one: bool = False
) -> Any:
    """See the module: x and residual ``[R, D]`` -> the norm of their sum, and the sum."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    normalize(out, x, weight, eps, plus_one, residual, total)
    return out, total


def normalize(out: Any, x: Any, weight: Any, eps: float, plus_one: bool, residual: Any, total: Any) -> None:
    """This program's rows of ``out``, and of ``total`` when there is a residual."""
    rows, size = x.shape
    start, stop = share(rows, 1)
    if stop > start:
        if rows <= SPREAD_ROWS and size >= SPREAD_SIZE and size % P == 0:
            spread(out, x, weight, eps, plus_one, residual, total, start, stop - start)
        else:
            stack(out, x, weight, eps, plus_one, residual, total, start, stop)


def stack(
    out: Any, x: Any, weight: Any, eps: float, plus_one: bool, residual: Any, total: Any, start: int, stop: int
) -> None:
    """Rows [start, stop), in tiles of 128 partitions."""
    most = max(1, TILE // x.shape[1])
    scale = load_repeated(weight, min(P, stop - start), plus_one)
    row = start
    while row < stop:
        p = min(P, stop - row)
        g = min(most, (stop - row) // p)
        tile(out, x, scale, eps, plus_one, residual, total, row, p, g)
        row += p * g


def load_repeated(weight: Any, partitions: int, plus_one: bool) -> Any:
    """The weight on every partition, ``[partitions, D]``; ``1 + weight`` in float32 when asked."""
    scale = None
    if weight != None:
        size = weight.shape[0]
        scale = nl.ndarray((partitions, size), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=scale, src=weight.ap(pattern=[[0, partitions], [1, size]], offset=0))
        if plus_one:
            scale = one_plus(scale)
    return scale


def one_plus(raw: Any) -> Any:
    """``1 + raw`` in float32."""
    shifted = nl.ndarray(raw.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shifted, data=raw, op0=nl.add, operand0=1.0)
    return shifted


def load_sum(x: Any, residual: Any, total: Any, shape: tuple[int, ...], pattern: list[list[int]], offset: int) -> Any:
    """A tile of x, or of ``x + residual``, which is then also written to ``total``."""
    data = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
    if residual != None:
        other = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=other, src=residual.ap(pattern=pattern, offset=offset))
        nisa.tensor_tensor(dst=data, data1=data, data2=other, op=nl.add)
        nisa.dma_copy(dst=total.ap(pattern=pattern, offset=offset), src=data)
    return data


def tile(
    out: Any, x: Any, scale: Any, eps: float, plus_one: bool, residual: Any, total: Any, row: int, p: int, g: int
) -> None:
    """``p * g`` rows from ``row``, ``g`` neighbours on each of ``p`` partitions."""
    size = x.shape[1]
    shape = (p, g, size)
    pattern = [[g * size, p], [size, g], [1, size]]
    data = load_sum(x, residual, total, shape, pattern, row * size)
    result = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((p, g), dtype=nl.float32, buffer=nl.sbuf)
    if g == 1:
        # Only the row sums are wanted: they are taken before the squares are rounded to the result's type.
        nisa.activation(
            dst=result,
            op=nl.square,
            data=data,
            reduce_op=nl.add,
            reduce_res=sums,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
    else:
        squares = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=squares, op=nl.square, data=data)
        nisa.tensor_reduce(dst=sums, op=nl.add, data=squares, axis=2)
    factor = inverse_root(sums, size, eps)
    factors = factor.expand_dim(2).broadcast(dim=2, size=size)
    scales = None
    if scale != None:
        scales = scale[0:p, :].expand_dim(1).broadcast(dim=1, size=g)
    multiply(result, data, factors, scales, plus_one)
    nisa.dma_copy(dst=out.ap(pattern=pattern, offset=row * size), src=result)


def spread(
    out: Any, x: Any, weight: Any, eps: float, plus_one: bool, residual: Any, total: Any, row: int, count: int
) -> None:
    """``count`` rows from ``row``, each over all partitions: element ``p * (D / 128) + c`` on partition p."""
    size = x.shape[1]
    width = size // P
    shape = (P, count, width)
    pattern = [[width, P], [size, count], [1, width]]
    data = load_sum(x, residual, total, shape, pattern, row * size)
    squares = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=data)
    parts = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=parts, op=nl.add, data=squares, axis=2)
    ones = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    sums = nl.ndarray((P, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=sums, stationary=ones, moving=parts, accumulate=False)
    factors = inverse_root(sums, size, eps).expand_dim(2).broadcast(dim=2, size=width)
    scales = None
    if weight != None:
        raw = nl.ndarray((P, width), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=raw, src=weight.ap(pattern=[[width, P], [1, width]], offset=0))
        scale = one_plus(raw) if plus_one else raw
        scales = scale.expand_dim(1).broadcast(dim=1, size=count)
    result = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    multiply(result, data, factors, scales, plus_one)
    nisa.dma_copy(dst=out.ap(pattern=pattern, offset=row * size), src=result)


def inverse_root(sums: Any, size: int, eps: float) -> Any:
    """``1 / sqrt(sums / size + eps)`` in float32, in the shape of ``sums``."""
    p = sums.shape[0]
    bias = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias, value=eps)
    factor = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factor, op=nl.rsqrt, data=sums, scale=1.0 / size, bias=bias)
    return factor


def multiply(result: Any, data: Any, factors: Any, scales: Any, plus_one: bool) -> None:
    """``result = data * factors * scales``; ``data`` is overwritten when that rounds as the reference does."""
    if scales == None:
        nisa.tensor_tensor(dst=result, data1=data, data2=factors, op=nl.multiply)
    elif plus_one:
        wide = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=wide, data1=data, data2=factors, op=nl.multiply)
        nisa.tensor_tensor(dst=result, data1=wide, data2=scales, op=nl.multiply)
    else:
        nisa.tensor_tensor(dst=data, data1=data, data2=factors, op=nl.multiply)
        nisa.tensor_tensor(dst=result, data1=data, data2=scales, op=nl.multiply)
