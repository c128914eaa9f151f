"""Pieces that the matrix kernels share: who computes what, how rows become columns, how weights stream past them.

A matrix product on the tensor engine contracts over partitions, and tokens arrive in rows. So activations are
transposed once, on the tensor engine, and kept in SBUF as ``[128, ceil(H / 128), T]``: element ``h`` of a token sits on
partition ``h % 128``, block ``h // 128``. They are the stationary side. Weights ``[H, O]`` are the moving side, in
blocks of 128 rows by 512 columns, and are read from HBM once for each group of tokens.

Bounds: a product of T tokens takes ``ceil(T / 128) * ceil(H / 128) * O`` cycles of the tensor engine (four times that
in float32), its transposes ``ceil(T / 128) * ceil(H / 128) * 128`` more; weights cost ``H * O`` elements of DMA for
each group of ``group_of`` tokens.

The kernels that import this use views of NKI 0.5 and later (``broadcast``, ``expand_dim``). No device has run them yet:
what is known of them is the stand-in's arithmetic and counts.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nl

P = 128
# Columns of float32 in a PSUM bank, and the most moving columns of one product.
COLUMNS = 512
# Banks that accumulate at a time: half of the eight, so that the next group can start while these are emptied.
BANKS = 4
BANK_BYTES = 2048
# Bytes a partition for one load of weights, for one load of activations, and for transposed activations.
WEIGHT_BYTES = 24 * 1024
ROW_BYTES = 8 * 1024
KEPT_BYTES = 64 * 1024


def item(dtype: Any) -> int:
    """Bytes of an element of float32, bfloat16 or float16."""
    return 4 if dtype == nl.float32 else 2


def blocks(size: int) -> int:
    """Blocks of 128 that hold ``size``."""
    return (size + P - 1) // P


def program() -> tuple[int, int]:
    """This program's index, and the number of programs of the logical core."""
    if nl.program_ndim() == 0:
        return 0, 1
    return nl.program_id(0), nl.num_programs(0)


def share(size: int, unit: int) -> tuple[int, int]:
    """The part [start, stop) of ``size`` that is this program's, in multiples of ``unit``; it may be empty."""
    index, count = program()
    part = (size + count * unit - 1) // (count * unit) * unit
    return min(size, index * part), min(size, index * part + part)


def group_of(tokens: int, bytes_a_token: int) -> int:
    """Tokens that are worked on together: at most 512, and what ``KEPT_BYTES`` holds, in multiples of 128."""
    fit = max(P, KEPT_BYTES // bytes_a_token // P * P)
    return min(tokens, fit, BANKS * P)


def transpose_into(dst: Any, data: Any, columns: int) -> None:
    """``dst [128, blocks(columns), T]`` = ``data [T, columns]`` in SBUF, transposed; T is at most 128.

    As many blocks as a PSUM bank holds are copied out together.
    """
    tokens = data.shape[0]
    full = columns // P
    batch = max(1, BANK_BYTES // (tokens * item(data.dtype)))
    for first in range(0, full, batch):
        count = min(batch, full - first)
        bank = nl.ndarray((P, count, tokens), dtype=data.dtype, buffer=nl.psum)
        for j in range(count):
            nisa.nc_transpose(dst=bank[:, j, :], data=data[:, nl.ds((first + j) * P, P)], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=dst[:, nl.ds(first, count), :], src=bank)
    rest = columns - full * P
    if rest > 0:
        bank = nl.ndarray((rest, tokens), dtype=data.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=data[:, nl.ds(full * P, rest)], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=dst[0:rest, full, :], src=bank)


def load_transposed(x: Any, start: int, tokens: int) -> Any:
    """Rows [start, start + tokens) of ``x [T, H]`` in HBM as ``[128, blocks(H), tokens]`` in SBUF."""
    width = x.shape[1]
    kept = nl.ndarray((P, blocks(width), tokens), dtype=x.dtype, buffer=nl.sbuf)
    most = ROW_BYTES // item(x.dtype)
    for t in range(0, tokens, P):
        rows = min(P, tokens - t)
        for c in range(0, width, most):
            columns = min(most, width - c)
            tile = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[nl.ds(start + t, rows), nl.ds(c, columns)])
            transpose_into(kept[:, nl.ds(c // P, blocks(columns)), nl.ds(t, rows)], tile, columns)
    return kept


def load_weights(w: Any, first: int, count: int, start: int, columns: int) -> Any:
    """Blocks [first, first + count) of 128 rows of ``w [H, O]``, columns from ``start``: ``[128, count, columns]``.

    The last block of a matrix may have fewer rows; what it lacks is never read.
    """
    height, width = w.shape
    tile = nl.ndarray((P, count, columns), dtype=w.dtype, buffer=nl.sbuf)
    rest = max(0, (first + count) * P - height)
    full = count if rest == 0 else count - 1
    if full > 0:
        pattern = [[width, P], [P * width, full], [1, columns]]
        nisa.dma_copy(dst=tile[:, 0:full, :], src=w.ap(pattern=pattern, offset=first * P * width + start))
    if rest > 0:
        rows = P - rest
        nisa.dma_copy(dst=tile[0:rows, full, :], src=w[nl.ds((first + full) * P, rows), nl.ds(start, columns)])
    return tile


def ones_row(count: int, dtype: Any) -> Any:
    """``[1, count]`` of ones: a bias times it is a bias for each token."""
    ones = nl.ndarray((1, count), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return ones


def load_row(vector: Any, start: int, columns: int) -> Any:
    """``vector[start : start + columns]`` of HBM as ``[1, columns]`` in SBUF."""
    row = nl.ndarray((1, columns), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=vector.ap(pattern=[[columns, 1], [1, columns]], offset=start))
    return row


def accumulate(banks: Any, kept: Any, height: int, w: Any, start: int, columns: int, bias: Any) -> None:
    """``banks[t][c]`` = tokens ``t * 128 ...`` of ``kept``, times columns ``start + c * 512 ...`` of ``w``, plus bias.

    Args:
        banks: lists of PSUM tiles ``[128, 512]`` float32, one list for each 128 tokens, one tile for 512 columns.
        kept: ``[128, blocks(height), T]`` in SBUF.
        w: ``[height, O]`` in HBM.
        start, columns: the columns of ``w``.
        bias: ``[O]`` in HBM, or None.
    """
    tokens = kept.shape[2]
    depth = blocks(height)
    group = max(1, min(depth, WEIGHT_BYTES // (columns * item(w.dtype))))
    for first in range(0, depth, group):
        count = min(group, depth - first)
        weights = load_weights(w, first, count, start, columns)
        for k in range(count):
            rows = min(P, height - (first + k) * P)
            for t in range(len(banks)):
                p = min(P, tokens - t * P)
                for c in range(len(banks[t])):
                    n = min(COLUMNS, columns - c * COLUMNS)
                    nisa.nc_matmul(
                        dst=banks[t][c][0:p, 0:n],
                        stationary=kept[0:rows, first + k, nl.ds(t * P, p)],
                        moving=weights[0:rows, k, nl.ds(c * COLUMNS, n)],
                        accumulate=first + k > 0,
                    )
    if bias != None:
        row = load_row(bias, start, columns)
        ones = ones_row(min(P, tokens), bias.dtype)
        for t in range(len(banks)):
            p = min(P, tokens - t * P)
            for c in range(len(banks[t])):
                n = min(COLUMNS, columns - c * COLUMNS)
                nisa.nc_matmul(
                    dst=banks[t][c][0:p, 0:n],
                    stationary=ones[:, 0:p],
                    moving=row[:, nl.ds(c * COLUMNS, n)],
                    accumulate=True,
                )


def new_banks(tokens: int, columns: int) -> Any:
    """PSUM tiles for ``tokens`` by ``columns``: one list for each 128 tokens, one tile for each 512 columns."""
    banks = []
    for _t in range(0, tokens, P):
        row = []
        for _c in range(0, columns, COLUMNS):
            row.append(nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum))
        banks.append(row)
    return banks


def project(out: Any, first_token: int, kept: Any, height: int, w: Any, start: int, stop: int, bias: Any) -> None:
    """``out[first_token ..., start:stop]`` = ``kept`` transposed back, times ``w[:, start:stop]``, plus bias.

    Args:
        out: ``[T, O]`` in HBM.
        first_token: row of ``out`` for token 0 of ``kept``.
        kept, height, w, bias: as in :func:`accumulate`; at most 512 tokens.
        start, stop: columns of ``w`` and ``out``.
    """
    tokens = kept.shape[2]
    step = max(1, BANKS // blocks(tokens)) * COLUMNS
    for o in range(start, stop, step):
        columns = min(step, stop - o)
        banks = new_banks(tokens, columns)
        accumulate(banks, kept, height, w, o, columns, bias)
        for t in range(len(banks)):
            p = min(P, tokens - t * P)
            tile = nl.ndarray((p, columns), dtype=out.dtype, buffer=nl.sbuf)
            for c in range(len(banks[t])):
                n = min(COLUMNS, columns - c * COLUMNS)
                nisa.tensor_copy(dst=tile[:, nl.ds(c * COLUMNS, n)], src=banks[t][c][0:p, 0:n])
            nisa.dma_copy(dst=out[nl.ds(first_token + t * P, p), nl.ds(o, columns)], src=tile)


def product(x: Any, w: Any, bias: Any) -> Any:
    """``x [T, H] @ w [H, O] + bias [O]`` -> new ``[T, O]`` in shared HBM.

    Two programs divide the columns, so that each weight is read once; from 256 tokens on they divide the tokens, since
    then the tensor engine is what limits, and each transposes half of them.
    """
    tokens, height = x.shape
    width = w.shape[1]
    out = nl.ndarray((tokens, width), dtype=x.dtype, buffer=nl.shared_hbm)
    first, last, start, stop = 0, tokens, 0, width
    if tokens >= 2 * P:
        first, last = share(tokens, P)
    else:
        start, stop = share(width, P)
    group = group_of(max(1, last - first), blocks(height) * item(x.dtype))
    if stop > start:
        for t in range(first, last, group):
            kept = load_transposed(x, t, min(group, last - t))
            project(out, t, kept, height, w, start, stop, bias)
            kept = None
    return out
