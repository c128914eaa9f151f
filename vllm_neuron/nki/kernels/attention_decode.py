"""Decode attention: few queries of each row over the paged cache, every key and value read once.

Layouts (HBM): q [B, Q, N, D], pages [blocks * block_size, K * (D + E)] (a token a row, keys of all heads first; a
latent cache holds keys alone, and the first E channels of each are its value), slots int32 [B, S], the row of pages
of each key, mask uint8 [B, Q, S], out [B, Q, N, E]. G = N / K queries share a key; Q * N is at most 128.

On chip, a section of up to 16 * 128 keys of a row at a time. Keys lie on partitions, so scores are [keys, column], a
column for each (KV head, query, head of its group). Each partition holds neighbouring keys, so that runs of slots
that follow each other in a block are gathered in one descriptor by indirect DMA. Keys are transposed on the tensor
engine for the scores; weights [keys, column] and values [keys, E] then need no transposition: their product is [E,
column]. Keys of neighbouring heads of size 32 or 64 are transposed and multiplied together. The maximum of a column
over the partitions goes through a transposition to [column, keys], and back to all partitions as a product of ones
with its diagonal matrix; the sum of the weights is a product with ones as well. Masked scores are a large finite
number, so a section without a visible key gives no NaN.

Cost bound: DMA, B * S * K * (D + E) elements from HBM.

Two programs of a logical core divide the rows; a single row is divided by its keys, and the two halves are merged
through ``sendrecv``.
"""

from dataclasses import dataclass
from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl

P = 128
BANK = 512
MOST_TILES = 16
TILE_BYTES = 48 * 1024
MASKED = -1.0e30


@dataclass
class Job(nl.NKIObject):
    """Sizes and operands of one call; a score leaves PSUM as ``tanh(score * inner)`` with a soft cap, else as it is,
    and counts ``factor`` times.
    """

    q: Any
    pages: Any
    slots: Any
    mask: Any
    bias: Any
    sinks: Any
    out: Any
    ones: Any
    queries: int
    heads: int
    kv_heads: int
    group: int
    size: int
    value_size: int
    value_start: int
    run: int
    columns: int
    pack: int
    most_tiles: int
    factor: float
    inner: float


@nki.jit
def attention_decode_kernel(
    q: Any,
    pages: Any,
    slots: Any,
    mask: Any,
    scale: float,
    kv_heads: int,
    value_size: int,
    value_start: int,
    run: int,
    softcap: Any = None,
    sinks: Any = None,
    bias: Any = None,
) -> Any:
    """Attention of few queries a row over the paged cache.

    Args:
        q, pages, slots, mask: see the module; q and pages of one type, fp32 or 2 bytes.
        scale: factor on the scores, above 0.
        kv_heads: K.
        value_size: E.
        value_start: column of the first value in a row: K * D, or 0 where keys are their own values (latent).
        run: a power of two that divides the block size: so many slots follow each other in memory.
        softcap: scores become ``softcap * tanh(score / softcap)``, or None.
        sinks: fp32 [1, N], one more logit a head that takes weight and gives nothing, or None.
        bias: fp32 [B, N, Q, S], added after the soft cap, or None.
    """
    batch, queries, heads, size = q.shape
    out = nl.ndarray((batch, queries, heads, value_size), dtype=q.dtype, buffer=nl.shared_hbm)
    columns = queries * heads
    factor, inner = scale, 0.0
    if softcap != None:
        factor, inner = softcap, scale / softcap
    row_bytes = pages.shape[1] * (4 if q.dtype == nl.float32 else 2)
    ones = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    job = Job(
        q=q, pages=pages, slots=slots, mask=mask, bias=bias, sinks=None, out=out, ones=ones, queries=queries,
        heads=heads, kv_heads=kv_heads, group=heads // kv_heads, size=size, value_size=value_size,
        value_start=value_start, run=run, columns=columns, pack=_pack(size, kv_heads), factor=factor, inner=inner,
        most_tiles=max(1, min(MOST_TILES, TILE_BYTES // row_bytes)),
    )  # fmt: skip
    if sinks != None:
        job.sinks = _sinks(job, sinks, 1.0 if bias != None else factor)
    programs, program = 1, 0
    if nl.program_ndim() > 0:
        programs, program = nl.num_programs(0), nl.program_id(0)
    keys = slots.shape[1]
    if batch == 1 and programs > 1 and keys >= programs * run:
        half = keys // programs // run * run
        state = _row(job, 0, half * program, half if program == 0 else keys)
        _merge(job, state, program)
        if program == 0:
            _store(job, 0, state)
    else:
        for b in range(program, batch, programs):
            _store(job, b, _row(job, b, 0, keys))
    return out


def _pack(size: int, kv_heads: int) -> int:
    """KV heads whose keys are transposed and multiplied together: as many as fill the tensor engine's rows, where each
    then starts at a partition that engines can address.
    """
    if size == 64 or size == 32:
        return min(kv_heads, P // size)
    return 1


def _sinks(job: Any, sinks: Any, factor: float) -> Any:
    """Sinks in the unit of the scores on all partitions, [128, columns]."""
    tile = nl.ndarray((P, job.heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=sinks.ap([[0, P], [1, job.heads]]))
    result = nl.ndarray((P, job.kv_heads, job.queries, job.group), dtype=nl.float32, buffer=nl.sbuf)
    for query in range(job.queries):
        nisa.tensor_scalar(
            dst=result[:, :, query, :],
            data=tile.reshape((P, job.kv_heads, job.group)),
            op0=nl.multiply,
            operand0=1.0 / factor,
        )
    return result.reshape((P, job.columns))


def _row(job: Any, b: int, start: int, stop: int) -> Any:
    """Keys ``start`` to ``stop`` of one row: maximum and sum on all partitions [128, column], and the weighted values
    [E of a chunk, chunk, column].
    """
    chunks = (job.value_size + P - 1) // P
    qt = _queries(job, b)
    top = nl.ndarray((P, job.columns), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((P, job.columns), dtype=nl.float32, buffer=nl.sbuf)
    product = nl.ndarray((P, chunks, job.columns), dtype=nl.float32, buffer=nl.sbuf)
    first = True
    if job.sinks != None and start == 0:
        nisa.tensor_copy(dst=top, src=job.sinks)
        nisa.memset(dst=total, value=1.0)
        nisa.memset(dst=product, value=0.0)
        first = False
    step = job.most_tiles * P
    for at in range(start, stop, step):
        _section(job, b, qt, at, min(step, stop - at), first, top, total, product)
        first = False
    return top, total, product


def _queries(job: Any, b: int) -> Any:
    """q^T [D of a chunk, chunk, column].

    With several heads in a pack, [D of a head of the pack, 1, column]: a column is zero but in its own head's rows, so
    that a product with the keys of the whole pack gives each column its own head's scores.
    """
    span = job.pack * job.size
    chunks = (span + P - 1) // P
    rows = nl.ndarray((job.columns, span), dtype=job.q.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows[:, : job.size], src=job.q[b].reshape((job.columns, job.size)))
    for i in range(1, job.pack):
        nisa.tensor_copy(dst=rows[:, i * job.size : (i + 1) * job.size], src=rows[:, : job.size])
    qt = nl.ndarray((P, chunks, job.columns), dtype=job.q.dtype, buffer=nl.sbuf)
    if job.pack > 1:
        nisa.memset(dst=qt, value=0.0)
    for c in range(chunks):
        width = min(P, span - c * P)
        psum = nl.ndarray((P, job.columns), dtype=job.q.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=psum[:width, :], data=rows[:, c * P : c * P + width], engine=nisa.engine.tensor)
        by_query = psum[:width, :].reshape((width, job.queries, job.kv_heads, job.group))
        by_head = qt[:width, c, :].reshape((width, job.kv_heads, job.queries, job.group))
        if job.pack == 1:
            nisa.tensor_copy(dst=by_head, src=by_query.permute((0, 2, 1, 3)))
        for kv in range(job.kv_heads if job.pack > 1 else 0):
            first = kv % job.pack * job.size
            own = by_query[first : first + job.size, :, kv, :]
            nisa.tensor_copy(dst=by_head[first : first + job.size, kv, :, :], src=own)
    return qt


def _section(job: Any, b: int, qt: Any, start: int, size: int, first: bool, top: Any, total: Any, product: Any) -> None:
    """Add the keys ``start`` to ``start + size`` to the state of a row."""
    full, rest = size // P, size % P
    tiles = full + (1 if rest > 0 else 0)
    used = P if full > 0 else rest
    rows = nl.ndarray((P, tiles, job.pages.shape[1]), dtype=job.pages.dtype, buffer=nl.sbuf)
    mask = nl.ndarray((P, job.queries, tiles), dtype=nl.uint8, buffer=nl.sbuf)
    if full > 0:
        _gather(job, b, start, P, full, rows[:, :full, :])
        _load_mask(job, b, start, P, full, mask[:, :, :full])
    if rest > 0:
        _gather(job, b, start + full * P, rest, 1, rows[:rest, full:, :])
        _load_mask(job, b, start + full * P, rest, 1, mask[:rest, :, full:])
    scores = nl.ndarray((P, tiles, job.columns), dtype=nl.float32, buffer=nl.sbuf)
    if rest > 0 and full > 0:
        nisa.memset(dst=scores[:, full, :], value=MASKED)
    _scores(job, qt, rows, mask, scores, full, rest)
    if job.bias != None:
        _add_bias(job, b, start, full, rest, scores)
    _softmax(job, scores[:used, :, :], rows, full, rest, first, top, total, product)


def _gather(job: Any, b: int, start: int, partitions: int, each: int, rows: Any) -> None:
    """Rows of the cache, ``each`` neighbouring keys a partition."""
    slots = nl.ndarray((P, each), dtype=nl.int32, buffer=nl.sbuf)
    offset = b * job.slots.shape[1] + start
    nisa.dma_copy(dst=slots[:partitions, :], src=job.slots.ap([[each, partitions], [1, each]], offset=offset))
    run = 1
    while each % (2 * run) == 0 and job.run % (2 * run) == 0:
        run = 2 * run
    width = job.pages.shape[1]
    for i in range(0, each, run):
        source = job.pages.ap(
            [[width, partitions], [width, run], [1, width]],
            offset=0,
            vector_offset=slots[:partitions, i : i + 1],
            indirect_dim=0,
        )
        nisa.dma_copy(dst=rows[:, i : i + run, :], src=source)


def _load_mask(job: Any, b: int, start: int, partitions: int, each: int, mask: Any) -> None:
    """The mask of the same keys, [partition, query, tile]."""
    keys = job.mask.shape[2]
    source = job.mask.ap([[each, partitions], [keys, job.queries], [1, each]], offset=b * job.queries * keys + start)
    nisa.dma_copy(dst=mask, src=source)


def _keys(job: Any, rows: Any, column: int, width: int, tile: int, count: int, used: int) -> Any:
    """``width`` columns of the keys of ``count`` tiles, transposed: [D of a chunk, chunk, tile, key]."""
    chunks = (width + P - 1) // P
    kt = nl.ndarray((P, chunks, count, P), dtype=rows.dtype, buffer=nl.sbuf)
    per = BANK * 4 // P // (4 if rows.dtype == nl.float32 else 2)
    for c in range(chunks):
        start = column + c * P
        n = min(P, width - c * P)
        for at in range(0, count, per):
            some = min(per, count - at)
            psum = nl.ndarray((P, per, P), dtype=rows.dtype, buffer=nl.psum)
            for i in range(some):
                nisa.nc_transpose(
                    dst=psum[:n, i, :used],
                    data=rows[:used, tile + at + i, start : start + n],
                    engine=nisa.engine.tensor,
                )
            nisa.tensor_copy(
                dst=kt[:n, c, at : at + some, :used], src=psum[:n, :some, :used], engine=nisa.engine.scalar
            )
    return kt


def _scores(job: Any, qt: Any, rows: Any, mask: Any, scores: Any, full: int, rest: int) -> None:
    """Masked scores [key, tile, column]; the last tile is ``rest`` keys long."""
    per = max(1, BANK // job.columns)
    for at in range(0, full, per):
        _some_scores(job, qt, rows, mask, scores, at, min(per, full - at), P)
    if rest > 0:
        _some_scores(job, qt, rows, mask, scores, full, 1, rest)


def _some_scores(job: Any, qt: Any, rows: Any, mask: Any, scores: Any, tile: int, count: int, used: int) -> None:
    """``count`` tiles, as many as a PSUM bank takes."""
    own = job.queries * job.group
    psum = nl.ndarray((P, count, job.columns), dtype=nl.float32, buffer=nl.psum)
    for kv in range(0, job.kv_heads, job.pack):
        heads = min(job.pack, job.kv_heads - kv)
        size = heads * job.size
        kt = _keys(job, rows, kv * job.size, size, tile, count, used)
        for i in range(count):
            for c in range(kt.shape[1]):
                n = min(P, size - c * P)
                nisa.nc_matmul(
                    dst=psum[:used, i, kv * own : (kv + heads) * own],
                    stationary=kt[:n, c, i, :used],
                    moving=qt[:n, c, kv * own : (kv + heads) * own],
                    accumulate=c > 0,
                )
    part = scores[:used, tile : tile + count, :]
    source = psum[:used, :, :]
    if job.inner != 0.0:
        nisa.activation(dst=part, op=nl.tanh, data=source, scale=job.inner)
        source = part
    shape = (used, count, job.kv_heads, job.queries, job.group)
    visible = mask[:used, :, tile : tile + count].permute((0, 2, 1)).expand_dim(2).broadcast(2, job.kv_heads)
    nisa.select_reduce(
        dst=part.reshape(shape),
        predicate=visible.expand_dim(4).broadcast(4, job.group),
        on_true=source.reshape(shape),
        on_false=MASKED,
    )


def _add_bias(job: Any, b: int, start: int, full: int, rest: int, scores: Any) -> None:
    """Scores times their factor plus the bias."""
    keys = job.bias.shape[3]
    base = b * job.columns * keys + start
    if full > 0:
        _add_some_bias(job, job.bias.ap([[full, P], [keys, job.columns], [1, full]], offset=base), scores[:, :full, :])
    if rest > 0:
        source = job.bias.ap([[1, rest], [keys, job.columns], [1, 1]], offset=base + full * P)
        _add_some_bias(job, source, scores[:rest, full:, :])


def _add_some_bias(job: Any, source: Any, scores: Any) -> None:
    """A bias [key, (head, query), tile] onto scores [key, tile, column]."""
    used, tiles, columns = scores.shape
    bias = nl.ndarray((used, columns, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias, src=source)
    by_head = bias.reshape((used, job.kv_heads, job.group, job.queries, tiles))
    shape = (used, tiles, job.kv_heads, job.queries, job.group)
    nisa.scalar_tensor_tensor(
        dst=scores.reshape(shape), data=scores.reshape(shape), op0=nl.multiply, operand0=job.factor,
        op1=nl.add, operand1=by_head.permute((0, 4, 1, 3, 2)),
    )  # fmt: skip


def _softmax(
    job: Any, scores: Any, rows: Any, full: int, rest: int, first: bool, top: Any, total: Any, product: Any
) -> None:
    """Weights of a section, and the state of the row with them."""
    used, tiles, columns = scores.shape
    factor = job.factor if job.bias == None else 1.0
    decay = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.sbuf)
    highest = _highest(job, scores)
    if first:
        nisa.tensor_copy(dst=top, src=highest)
    else:
        nisa.tensor_copy(dst=decay, src=top)
        nisa.tensor_tensor(dst=top, data1=highest, data2=top, op=nl.maximum)
        nisa.tensor_tensor(dst=decay, data1=decay, data2=top, op=nl.subtract)
        nisa.activation(dst=decay, op=nl.exp, data=decay, scale=factor)
    weights = nl.ndarray((used, tiles, columns), dtype=rows.dtype, buffer=nl.sbuf)
    shift = top[:used, :].expand_dim(1).broadcast(1, tiles)
    nisa.tensor_tensor(dst=scores, data1=scores, data2=shift, op=nl.subtract)
    nisa.activation(dst=weights, op=nl.exp, data=scores, scale=factor)
    sums = nl.ndarray((used, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=weights.permute((0, 2, 1)), axis=2)
    added = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=added, stationary=job.ones[:used, :], moving=sums, accumulate=False)
    _accumulate(total, decay, added, first)
    own = job.queries * job.group
    for c in range(product.shape[1]):
        width = min(P, job.value_size - c * P)
        part = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.psum)
        for kv in range(job.kv_heads):
            at = (job.value_start + kv * job.value_size if job.value_start > 0 else kv * job.size) + c * P
            for i in range(tiles):
                n = P if i < full else rest
                nisa.nc_matmul(
                    dst=part[:width, kv * own : (kv + 1) * own],
                    stationary=rows[:n, i, at : at + width],
                    moving=weights[:n, i, kv * own : (kv + 1) * own],
                    accumulate=i > 0,
                )
        _accumulate(product[:width, c, :], decay[:width, :], part[:width, :], first)


def _accumulate(x: Any, decay: Any, y: Any, first: bool) -> None:
    """``x = x * decay + y``, or ``x = y`` at first."""
    if first:
        nisa.tensor_copy(dst=x, src=y)
    else:
        nisa.tensor_tensor(dst=x, data1=x, data2=decay, op=nl.multiply)
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)


def _highest(job: Any, scores: Any) -> Any:
    """The maximum of each column over partitions and tiles, on all partitions, [128, column] in PSUM."""
    used, _, columns = scores.shape
    top = nl.ndarray((used, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores.permute((0, 2, 1)), axis=2)
    turned = nl.ndarray((columns, used), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=top, engine=nisa.engine.tensor)
    each = nl.ndarray((columns, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=each, op=nl.maximum, data=turned, axis=1)
    diagonal = nl.ndarray((columns, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=diagonal, pattern=[[-1, columns]], offset=0, channel_multiplier=1,
        on_true_tile=each.broadcast(1, columns), on_false_value=0.0, cmp_op=nl.equal,
    )  # fmt: skip
    result = nl.ndarray((P, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=result, stationary=job.ones[:columns, :], moving=diagonal, accumulate=False)
    return result


def _merge(job: Any, state: Any, program: int) -> None:
    """The states of the two programs into one, on both."""
    factor = job.factor if job.bias == None else 1.0
    top, total, product = state
    other_top = nl.ndarray(top.shape, dtype=nl.float32, buffer=nl.sbuf)
    other_total = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    other_product = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    peer = 1 - program
    nisa.sendrecv(src=top, dst=other_top, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    nisa.sendrecv(src=total, dst=other_total, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    for c in range(product.shape[1]):
        n = min(P, job.value_size - c * P)
        part = other_product[:n, c, :]
        nisa.sendrecv(src=product[:n, c, :], dst=part, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    highest = nl.ndarray(top.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=highest, data1=top, data2=other_top, op=nl.maximum)
    _decay(top, highest, factor)
    _decay(other_top, highest, factor)
    _combine(total, top, other_total, other_top)
    for c in range(product.shape[1]):
        n = min(P, job.value_size - c * P)
        _combine(product[:n, c, :], top[:n, :], other_product[:n, c, :], other_top[:n, :])


def _decay(top: Any, highest: Any, factor: float) -> None:
    """``top = exp((top - highest) * factor)``."""
    nisa.tensor_tensor(dst=top, data1=top, data2=highest, op=nl.subtract)
    nisa.activation(dst=top, op=nl.exp, data=top, scale=factor)


def _combine(x: Any, a: Any, y: Any, b: Any) -> None:
    """``x = x * a + y * b``; ``y`` is lost."""
    nisa.tensor_tensor(dst=x, data1=x, data2=a, op=nl.multiply)
    nisa.tensor_tensor(dst=y, data1=y, data2=b, op=nl.multiply)
    nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)


def _store(job: Any, b: int, state: Any) -> None:
    """Divide by the sums, transpose to [column, E] and write."""
    _, total, product = state
    nisa.reciprocal(dst=total, data=total)
    result = nl.ndarray((job.columns, job.value_size), dtype=job.out.dtype, buffer=nl.sbuf)
    for c in range(product.shape[1]):
        n = min(P, job.value_size - c * P)
        nisa.tensor_tensor(dst=product[:n, c, :], data1=product[:n, c, :], data2=total[:n, :], op=nl.multiply)
        by_query = nl.ndarray((P, job.queries, job.kv_heads, job.group), dtype=nl.float32, buffer=nl.sbuf)
        by_head = product[:n, c, :].reshape((n, job.kv_heads, job.queries, job.group))
        nisa.tensor_copy(dst=by_query[:n], src=by_head.permute((0, 2, 1, 3)))
        psum = nl.ndarray((job.columns, P), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=psum[:, :n], data=by_query[:n], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=result[:, c * P : c * P + n], src=psum[:, :n])
    nisa.dma_copy(dst=job.out[b].reshape((job.columns, job.value_size)), src=result)
