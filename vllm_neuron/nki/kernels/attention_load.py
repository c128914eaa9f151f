"""Queries, keys and values of prefill attention on chip: read or gathered, transposed, spread over the array's rows.

Layouts and row tiling: see ``flash_attention``. Whole blocks of 128 rows of a 2-byte type that come from HBM are
transposed by DMA on their way, all others on the tensor engine, for row tiling as many blocks at once as it has parts.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nl

P = 128
BANK = 512


def transposed(dst: Any, tiles: Any, at: int, count: int, rows: int, column: int, size: int, each: int = 1) -> None:
    """``dst[:size, i, :rows] = tiles[:rows, at + i, column : column + size].T``, a PSUM bank at a time.

    ``each`` neighbouring tiles are transposed at once, below each other.
    """
    per = BANK * 4 // P // (4 if tiles.dtype == nl.float32 else 2)
    for start in range(0, count, per):
        n = min(per, count - start)
        psum = nl.ndarray((P, per, P), dtype=tiles.dtype, buffer=nl.psum)
        for i in range(n):
            tile = at + (start + i) * each
            nisa.nc_transpose(
                dst=psum[: each * size, i, :rows],
                data=tiles[:rows, tile : tile + each, column : column + size],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(dst=dst[: each * size, start : start + n, :rows], src=psum[: each * size, :n, :rows])


def load_queries(job: Any, b: int, kv: int, first_tile: int, step: int, count: int, g: int, heads: int) -> Any:
    """q^T [D of a chunk, chunk, tile, head, query], in the partitions of every part."""
    chunks = (job.size + P - 1) // P
    head = kv * job.group + g
    qt = nl.ndarray((P, chunks, count, heads, P), dtype=job.q.dtype, buffer=nl.sbuf)
    for i in range(count):
        q0 = (first_tile + i * step) * P
        rows = min(P, job.queries - q0)
        if rows == P and job.q.dtype != nl.float32:
            _, queries, all_heads, size = job.q.shape
            at = ((b * queries + q0) * all_heads + head) * size
            for c in range(chunks):
                width = min(P, size - c * P)
                source = job.q.ap([[all_heads * size, P], [size, heads], [1, width]], offset=at + c * P)
                nisa.dma_transpose(dst=qt[:width, c, i, :, :], src=source, axes=(2, 1, 0))
        else:
            tile = nl.ndarray((P, heads, job.size), dtype=job.q.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile[:rows, :, :], src=job.q[b, q0 : q0 + rows, head : head + heads, :])
            for c in range(chunks):
                transposed(qt[:, c, i, :, :], tile, 0, heads, rows, c * P, min(P, job.size - c * P))
        for part in range(1, job.parts):
            low = part * (P // job.parts)
            nisa.dma_copy(dst=qt[low : low + job.size, 0, i, :, :rows], src=qt[: job.size, 0, i, :, :rows])
    return qt


def load_section(job: Any, b: int, kv: int, start: int, size: int) -> Any:
    """k^T [D of a chunk, chunk, slot, key], v [key of a tile, tile, E] of a section, and its whole tiles of 128 keys.

    Tile i of the keys is slot i // parts in the partitions of part i % parts; the last ``size % 128`` keys have a slot
    after those, in part 0. Dense, key j is column j of the scores. Paged, each of 128 partitions holds neighbouring
    keys, so that runs of them are read at once: with t = size // 128, key p * t + i is column i * 128 + p; the last
    ``size % 128`` keys are in order.
    """
    full, rest = size // P, size % P
    tiles = full + (1 if rest > 0 else 0)
    chunks = (job.size + P - 1) // P
    slots = (full + job.parts - 1) // job.parts
    kt = nl.ndarray((P, chunks, slots + tiles - full, P), dtype=job.q.dtype, buffer=nl.sbuf)
    by_dma = 0
    if job.slots == None and job.q.dtype != nl.float32:
        by_dma = full
    k = None
    if job.slots == None:
        v = nl.ndarray((P, tiles, job.value_size), dtype=job.q.dtype, buffer=nl.sbuf)
        _dense_keys(job, kt, b, kv, start, by_dma)
        _dense(job.v, v, b, kv, start, full, rest)
        if by_dma < tiles:
            k = _key_tiles(job, tiles - by_dma)
            _dense(job.k, k[:, :, : job.size], b, kv, start + by_dma * P, full - by_dma, rest)
    else:
        k, v = _paged(job, b, kv, start, full, rest)
    for c in range(chunks):
        width = min(P, job.size - c * P)
        if by_dma < full:
            _transposed_keys(job, kt[:, c, :, :], k, full, c * P, width)
        if rest > 0:
            transposed(kt[:, c, slots:, :], k, full - by_dma, 1, rest, c * P, width)
    return kt, v, full


def _key_tiles(job: Any, tiles: int) -> Any:
    """Room for keys [128, tile, D]; with row tiling D is filled up with zeros to the rows of a part."""
    width = job.size if job.parts == 1 else P // job.parts
    k = nl.ndarray((P, tiles, width), dtype=job.q.dtype, buffer=nl.sbuf)
    if width > job.size:
        nisa.memset(dst=k[:, :, job.size :], value=0.0)
    return k


def _transposed_keys(job: Any, kt: Any, k: Any, full: int, column: int, width: int) -> None:
    """k^T of a chunk from whole tiles of keys: those of one slot at once."""
    whole, left = full // job.parts, full % job.parts
    rows = width if job.parts == 1 else P // job.parts
    if whole > 0:
        transposed(kt[:, :whole, :], k, 0, whole, P, column, rows, job.parts)
    if left > 0:
        transposed(kt[:, whole : whole + 1, :], k, whole * job.parts, 1, P, column, rows, left)


def _dense_keys(job: Any, kt: Any, b: int, kv: int, start: int, tiles: int) -> None:
    """k^T of whole tiles of dense keys, transposed on their way from HBM, a part of the array at a time."""
    _, keys, heads, size = job.k.shape
    row = heads * size
    for part in range(min(job.parts, tiles)):
        low, count = part * (P // job.parts), (tiles - part + job.parts - 1) // job.parts
        for c in range(kt.shape[1]):
            width = min(P, size - c * P)
            offset = (b * keys + start + part * P) * row + kv * size + c * P
            source = job.k.ap([[row, P], [job.parts * P * row, count], [1, width]], offset=offset)
            nisa.dma_transpose(dst=kt[low : low + width, c, :count, :], src=source, axes=(2, 1, 0))


def _dense(x: Any, dst: Any, b: int, kv: int, start: int, full: int, rest: int) -> None:
    """Keys or values [B, S, K, width] of one head into tiles of 128 keys."""
    _, keys, heads, width = x.shape
    row = heads * width
    base = (b * keys + start) * row + kv * width
    if full > 0:
        source = x.ap([[row, P], [P * row, full], [1, width]], offset=base)
        nisa.dma_copy(dst=dst[:, :full, :], src=source)
    if rest > 0:
        nisa.dma_copy(dst=dst[:rest, full, :], src=x.ap([[row, rest], [1, width]], offset=base + full * P * row))


def _paged(job: Any, b: int, kv: int, start: int, full: int, rest: int) -> Any:
    """Keys [128, tile, D] and values [128, tile, E] of one head: whole rows of the cache where there is no other head,
    else both parts of them.
    """
    tiles = full + (1 if rest > 0 else 0)
    row = job.k.shape[1]
    if job.kv_heads == 1 and (job.parts == 1 or job.size * job.parts == P):
        both = nl.ndarray((P, tiles, row), dtype=job.q.dtype, buffer=nl.sbuf)
        _gather(job, both, None, b, 0, 0, start, full, rest)
        return both[:, :, : job.size], both[:, :, job.value_start : job.value_start + job.value_size]
    k = _key_tiles(job, tiles)
    keys = k[:, :, : job.size]
    if job.value_start == 0:
        _gather(job, keys, None, b, kv * job.size, 0, start, full, rest)
        return k, k[:, :, : job.value_size]
    v = nl.ndarray((P, tiles, job.value_size), dtype=job.q.dtype, buffer=nl.sbuf)
    _gather(job, keys, v, b, kv * job.size, job.value_start + kv * job.value_size, start, full, rest)
    return k, v


def _gather(
    job: Any, first: Any, second: Any, b: int, first_column: int, second_column: int, start: int, full: int, rest: int
) -> None:
    """One or two runs of columns of the rows of a section; see ``load_section`` for their order."""
    if full > 0:
        slots = _slots(job, b, start, P, full)
        _gather_columns(job, first, first_column, slots, P, full, 0)
        if second != None:
            _gather_columns(job, second, second_column, slots, P, full, 0)
    if rest > 0:
        slots = _slots(job, b, start + full * P, rest, 1)
        _gather_columns(job, first, first_column, slots, rest, 1, full)
        if second != None:
            _gather_columns(job, second, second_column, slots, rest, 1, full)


def _slots(job: Any, b: int, start: int, partitions: int, each: int) -> Any:
    """Slots of ``each`` neighbouring keys a partition."""
    slots = nl.ndarray((partitions, each), dtype=nl.int32, buffer=nl.sbuf)
    offset = b * job.keys + start
    nisa.dma_copy(dst=slots, src=job.slots.ap([[each, partitions], [1, each]], offset=offset))
    return slots


def _gather_columns(job: Any, dst: Any, column: int, slots: Any, partitions: int, each: int, tile: int) -> None:
    """Columns of the rows at ``slots``, into the tiles from ``tile`` on; runs of neighbours at once."""
    run = _run(each, job.run)
    row, width = job.k.shape[1], dst.shape[2]
    for i in range(0, each, run):
        source = job.k.ap(
            [[row, partitions], [row, run], [1, width]],
            offset=column,
            vector_offset=slots[:, i : i + 1],
            indirect_dim=0,
        )
        nisa.dma_copy(dst=dst[:partitions, tile + i : tile + i + run, :], src=source)


def _run(each: int, run: int) -> int:
    """The largest power of two that divides both."""
    size = 1
    while each % (2 * size) == 0 and run % (2 * size) == 0:
        size = 2 * size
    return size
