"""Flash attention: prefill over dense keys and values, and several queries over the paged cache.

Layouts (HBM): q [B, Q, N, D], k [B, S, K, D], v [B, S, K, E], mask uint8 [B, Q, S], out [B, Q, N, E]; paged: pages
[blocks * block_size, K * (D + E)] (a token a row, keys of all heads first) and slots int32 [B, S], the row of each
key. G = N / K queries share a key. D is split into chunks of 128, E is at most 512.

On chip, for a tile of 128 queries and a section of up to 2,048 keys: scores [queries, keys] from q^T [D, queries] and
k^T [D, keys] (tensor engine); masked while they leave PSUM, with the row maximum in the same pass (vector engine);
exponentials and their row sums (scalar engine); the weights transposed to [keys, queries]; the product with v [keys,
E] accumulates in PSUM. Between sections maxima, sums and products are rescaled (online softmax). Masked scores are a
large finite number, so a tile without a visible key gives no NaN. Whole blocks of 128 rows of a 2-byte type are
transposed by DMA (q and dense k on their way from HBM, weights within SBUF), all others on the tensor engine.

Row tiling: with D <= 64 a score product fills a half of the array's rows, with D <= 32 a quarter. So k^T of block i of
128 keys stands in the partitions of part i % parts, q^T in those of every part, and that many products over
neighbouring blocks, of one head and query tile, run at the same time (``nc_matmul``'s tile_position), each into a bank
of its own. Number and size of groups of heads don't matter.

Cost bound: the tensor engine, 2 * S cycles for a tile and head at D = E = 128, and about half of that with
``causal``, which leaves out the key blocks past the last query of a tile. What is left above it: with ``causal`` the
rest of the diagonal block, and an odd block that has a part of the array for itself; D between 65 and 127, which fills
the array as 128 does; E below 64, as a product takes no less than 64 cycles; transposes of fp32 and of paged keys.

Two programs of a logical core divide the KV heads; else the query tiles in turn; else the query heads of the one KV
head.
"""

from dataclasses import dataclass
from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl

P = 128
BANK = 512
SECTION = 2048
STATE_BYTES = 48 * 1024
MASKED = -1.0e30


@dataclass
class Job(nl.NKIObject):
    """Sizes and operands of one call; a score leaves PSUM as ``tanh(score * inner)`` with a soft cap, else as it is,
    and counts ``factor`` times.
    """

    q: Any
    k: Any
    v: Any
    slots: Any
    mask: Any
    bias: Any
    out: Any
    sinks: Any
    queries: int
    keys: int
    kv_heads: int
    group: int
    size: int
    value_size: int
    value_start: int
    run: int
    factor: float
    inner: float
    causal: bool
    parts: int


@dataclass
class State(nl.NKIObject):
    """A bundle of query tiles and heads: q^T, and between sections the maximum, sum and weighted values of each row.

    ``top`` and ``total`` are fp32 [128, tile, head], ``product`` [128, tile, head, E], or None with one section.
    """

    qt: Any
    top: Any
    total: Any
    product: Any


@nki.jit
def flash_attention_kernel(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: float,
    softcap: Any = None,
    sinks: Any = None,
    bias: Any = None,
    causal: bool = False,
) -> Any:
    """Attention over dense keys and values.

    Args:
        q, k, v, mask: see the module; one type, fp32 or 2 bytes.
        scale: factor on the scores, above 0.
        softcap: scores become ``softcap * tanh(score / softcap)``, or None.
        sinks: fp32 [1, N], one more logit a head that takes weight and gives nothing, or None.
        bias: fp32 [B, N, Q, S], added after the soft cap, or None.
        causal: key j is masked for query i where ``j > i + S - Q``, and never read.
    """
    batch, queries, heads, size = q.shape
    keys, kv_heads, value_size = k.shape[1], k.shape[2], v.shape[3]
    out = nl.ndarray((batch, queries, heads, value_size), dtype=q.dtype, buffer=nl.shared_hbm)
    factor, inner = _factors(scale, softcap)
    job = Job(
        q=q, k=k, v=v, slots=None, mask=mask, bias=bias, out=out, queries=queries, keys=keys, kv_heads=kv_heads,
        sinks=_sinks(sinks, factor, bias), group=heads // kv_heads, size=size,
        value_size=value_size, value_start=0, run=1, factor=factor, inner=inner, causal=causal,
        parts=_parts(size),
    )  # fmt: skip
    for b in range(batch):
        _row(job, b)
    return out


@nki.jit
def segmented_attention_kernel(
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
    """Attention of several queries over the paged cache, keys and values gathered once for each bundle of query tiles.

    Args:
        q, pages, slots, mask, scale, softcap, sinks, bias: see the module and ``flash_attention_kernel``.
        kv_heads: K.
        value_size: E.
        value_start: column of the first value in a row: K * D, or 0 where keys are their own values (latent).
        run: a power of two that divides the block size: so many slots follow each other in memory.
    """
    batch, queries, heads, size = q.shape
    out = nl.ndarray((batch, queries, heads, value_size), dtype=q.dtype, buffer=nl.shared_hbm)
    factor, inner = _factors(scale, softcap)
    job = Job(
        q=q, k=pages, v=pages, slots=slots, mask=mask, bias=bias, out=out, queries=queries, keys=slots.shape[1],
        kv_heads=kv_heads, sinks=_sinks(sinks, factor, bias), group=heads // kv_heads,
        size=size, value_size=value_size, value_start=value_start, run=run, factor=factor, inner=inner, causal=False,
        parts=_parts(size),
    )  # fmt: skip
    for b in range(batch):
        _row(job, b)
    return out


def _factors(scale: float, softcap: Any) -> Any:
    """What a score counts after it left PSUM, and its factor inside of tanh."""
    if softcap == None:
        return scale, 0.0
    return softcap, scale / softcap


def _parts(size: int) -> int:
    """Row tiles of the tensor engine that hold a head of this size."""
    if size <= P // 4:
        return 4
    return 2 if size <= P // 2 else 1


def _sinks(sinks: Any, factor: float, bias: Any) -> Any:
    """Sinks on all partitions, [128, N], in the unit of the scores; None without."""
    if sinks == None:
        return None
    heads = sinks.shape[1]
    tile = nl.ndarray((P, heads), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=sinks.ap([[0, P], [1, heads]]))
    if bias == None:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=1.0 / factor)
    return tile


def _row(job: Any, b: int) -> None:
    """All heads of one row of the batch: this program's share."""
    tiles = (job.queries + P - 1) // P
    programs, program = 1, 0
    if nl.program_ndim() > 0:
        programs, program = nl.num_programs(0), nl.program_id(0)
    first_kv, last_kv, step, first_tile, first_g, last_g = 0, job.kv_heads, 1, 0, 0, job.group
    if programs > 1:
        if job.kv_heads % programs == 0:
            first_kv = program * (job.kv_heads // programs)
            last_kv = first_kv + job.kv_heads // programs
        elif tiles > 1:
            step, first_tile = programs, program
        else:
            share = (job.group + programs - 1) // programs
            first_g, last_g = program * share, min(job.group, (program + 1) * share)
    for kv in range(first_kv, last_kv):
        if first_g < last_g:
            _kv_head(job, b, kv, first_tile, step, first_g, last_g)


def _kv_head(job: Any, b: int, kv: int, first_tile: int, step: int, first_g: int, last_g: int) -> None:
    """Bundles of query tiles and heads whose state fits, each over all sections of the keys."""
    chunks = (job.size + P - 1) // P
    tiles = (job.queries + P - 1) // P
    own = (tiles - first_tile + step - 1) // step
    width = 4 if job.q.dtype == nl.float32 else 2
    unit = P * chunks * width + 4 * job.value_size + 8
    heads = max(1, min(last_g - first_g, STATE_BYTES // unit))
    bundle = max(1, STATE_BYTES // (heads * unit))
    loaded = None
    if job.keys <= SECTION:
        loaded = _load(job, b, kv, 0, job.keys)
    for start in range(0, own, bundle):
        count = min(bundle, own - start)
        for g in range(first_g, last_g, heads):
            _bundle(job, b, kv, first_tile + start * step, step, count, g, min(heads, last_g - g), loaded)


def _bundle(job: Any, b: int, kv: int, first_tile: int, step: int, count: int, g: int, heads: int, loaded: Any) -> None:
    """``count`` query tiles, ``step`` apart, of ``heads`` query heads from ``g`` on."""
    state = State(
        qt=_queries(job, b, kv, first_tile, step, count, g, heads),
        top=nl.ndarray((P, count, heads), dtype=nl.float32, buffer=nl.sbuf),
        total=nl.ndarray((P, count, heads), dtype=nl.float32, buffer=nl.sbuf),
        product=None,
    )
    if job.keys > SECTION:
        state.product = nl.ndarray((P, count, heads, job.value_size), dtype=nl.float32, buffer=nl.sbuf)
    kt_v = loaded
    for start in range(0, job.keys, SECTION):
        size = min(SECTION, job.keys - start)
        last_query = min(job.queries, (first_tile + (count - 1) * step) * P + P)
        if job.causal and start >= last_query + job.keys - job.queries and start > 0:
            continue
        if loaded == None:
            kt_v = None
            kt_v = _load(job, b, kv, start, size)
        for i in range(count):
            q0 = (first_tile + i * step) * P
            _tiles(job, state, kt_v, b, kv * job.group + g, heads, i, q0, start, size)


def _tiles(
    job: Any, state: Any, kt_v: Any, b: int, head: int, heads: int, i: int, q0: int, start: int, size: int
) -> None:
    """All heads of query tile ``i`` over one section, and their results after the last that they see."""
    rows = min(P, job.queries - q0)
    end = job.keys
    if job.causal:
        end = q0 + rows + job.keys - job.queries
    seen = min(size, end - start)
    if seen > 0:
        mask = nl.ndarray((P, size), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=mask[:rows, :seen], src=job.mask[b, q0 : q0 + rows, start : start + seen])
        if job.causal and q0 + job.keys - job.queries < start + seen - 1:
            _after(job, mask, q0, rows, start, seen)
        result = None
        if start + seen == end:
            result = nl.ndarray((P, heads, job.value_size), dtype=job.out.dtype, buffer=nl.sbuf)
        for j in range(heads):
            bias = _bias(job, b, head + j, q0, rows, start, seen)
            _tile(job, state, kt_v, mask, bias, head + j, i, j, rows, seen, start == 0, result)
        if result != None:
            nisa.dma_copy(dst=job.out[b, q0 : q0 + rows, head : head + heads, :], src=result[:rows, :, :])


def _after(job: Any, mask: Any, q0: int, rows: int, start: int, seen: int) -> None:
    """Clear the mask where a key comes after its query: key ``start + j``, query ``q0 + p``."""
    last = q0 + job.keys - job.queries - start
    begin = max(0, last)
    part = mask[:rows, begin:seen]
    nisa.affine_select(
        dst=part,
        pattern=[[-1, seen - begin]],
        offset=last - begin,
        channel_multiplier=1,
        on_true_tile=part,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )


def _transposed(dst: Any, tiles: Any, at: int, count: int, rows: int, column: int, size: int, each: int = 1) -> None:
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


def _queries(job: Any, b: int, kv: int, first_tile: int, step: int, count: int, g: int, heads: int) -> Any:
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
                _transposed(qt[:, c, i, :, :], tile, 0, heads, rows, c * P, min(P, job.size - c * P))
        for part in range(1, job.parts):
            low = part * (P // job.parts)
            nisa.dma_copy(dst=qt[low : low + job.size, 0, i, :, :rows], src=qt[: job.size, 0, i, :, :rows])
    return qt


def _load(job: Any, b: int, kv: int, start: int, size: int) -> Any:
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
            _transposed(kt[:, c, slots:, :], k, full - by_dma, 1, rest, c * P, width)
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
        _transposed(kt[:, :whole, :], k, 0, whole, P, column, rows, job.parts)
    if left > 0:
        _transposed(kt[:, whole : whole + 1, :], k, whole * job.parts, 1, P, column, rows, left)


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
    """One or two runs of columns of the rows of a section; see ``_load`` for their order."""
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


def _bias(job: Any, b: int, head: int, q0: int, rows: int, start: int, seen: int) -> Any:
    """The bias of one head, query tile and section, or None."""
    if job.bias == None:
        return None
    tile = nl.ndarray((P, seen), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:rows, :], src=job.bias[b, head, q0 : q0 + rows, start : start + seen])
    return tile


def _columns(job: Any, tile: Any, rows: int, seen: int, first: int, size: int, ordered: bool) -> Any:
    """The part of a tile [query, key] for ``size`` columns of the scores: blocks ``first``, ``first + parts``, ...

    Blocks are those of the scores in an ordered tile, else of ``_load``; columns after the last whole one are in order.
    """
    full = seen // P
    if first >= full or full == 1 or (ordered and job.parts == 1):
        return tile[:rows, first * P : first * P + size]
    if ordered:
        blocks = tile[:rows, : full * P].reshape((rows, full, P))
    else:
        blocks = tile[:rows, : full * P].reshape((rows, P, full)).permute((0, 2, 1))
    return blocks[:, first : first + size // P * job.parts - job.parts + 1 : job.parts, :]


def _tile(
    job: Any,
    state: Any,
    kt_v: Any,
    mask: Any,
    bias: Any,
    head: int,
    i: int,
    j: int,
    rows: int,
    seen: int,
    first: bool,
    result: Any,
) -> None:
    """One query tile and head over ``seen`` keys of a section; small steps go to the engines that have time."""
    scores = nl.ndarray((P, seen), dtype=nl.float32, buffer=nl.sbuf)
    factor = job.factor if job.bias == None else 1.0
    before, sums = state.top[:rows, i, j : j + 1], state.total[:rows, i, j : j + 1]
    top, total, other = before, sums, None
    if not first:
        top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        other = before
    elif job.sinks != None:
        other = job.sinks[:rows, head : head + 1]
    _scores(job, state.qt[:, :, i, j, :], kt_v[0], kt_v[2], mask, bias, rows, seen, scores, top)
    if other != None:
        nisa.tensor_tensor(dst=top, data1=top, data2=other, op=nl.maximum)
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-factor, engine=nisa.engine.gpsimd)
    weights = nl.ndarray((P, seen), dtype=job.q.dtype, buffer=nl.sbuf)
    nisa.activation_reduce(
        dst=weights[:rows, :], op=nl.exp, data=scores[:rows, :], reduce_op=nl.add, reduce_res=total,
        bias=shift, scale=factor,
    )  # fmt: skip
    product = _weighted(job, weights, kt_v[1], rows, seen)[:rows, :]
    if other != None:
        decay = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=decay, op=nl.exp, data=other, bias=shift, scale=factor)
        if first:
            nisa.tensor_tensor(dst=total, data1=total, data2=decay, op=nl.add, engine=nisa.engine.gpsimd)
        else:
            _add_scaled(state.product[:rows, i, j, :], decay, product)
            _add_scaled(sums, decay, total)
            nisa.tensor_copy(dst=before, src=top, engine=nisa.engine.gpsimd)
            product = state.product[:rows, i, j, :]
    if result != None:
        inverse = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=sums)
        nisa.activation(dst=result[:rows, j, :], op=nl.copy, data=product, scale=inverse)
    elif first:
        nisa.tensor_copy(dst=state.product[:rows, i, j, :], src=product, engine=nisa.engine.scalar)


def _add_scaled(x: Any, factor: Any, y: Any) -> None:
    """``x = x * factor + y`` with a factor a partition."""
    nisa.scalar_tensor_tensor(dst=x, data=x, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=y)


def _scores(
    job: Any, qt: Any, kt: Any, whole: int, mask: Any, bias: Any, rows: int, seen: int, scores: Any, top: Any
) -> None:
    """Masked scores into ``scores`` [query, key], and their maximum a row into ``top`` [query, 1].

    ``whole``: tiles of 128 keys in the section, see ``_load``.
    """
    parts, blocks = job.parts, BANK // P
    full, tail = seen // P, seen % P
    if parts == 1 and job.slots == None:
        full, tail = (seen + P - 1) // P, 0
    groups = (full + parts * blocks - 1) // (parts * blocks)
    pieces = 1 if tail > 0 else 0
    if groups > 0:
        pieces += (groups - 1) * parts + min(parts, full - (groups - 1) * parts * blocks)
    tops = nl.ndarray((rows, pieces), dtype=nl.float32, buffer=nl.sbuf)
    piece = 0
    for group in range(groups):
        slot = group * blocks
        used = min(parts, full - slot * parts)
        psum = nl.ndarray((P, used, BANK), dtype=nl.float32, buffer=nl.psum)
        for i in range(used):
            size = _piece(parts, full, seen, i, slot)
            _multiply(job, psum[:rows, i, :size], qt, kt, i, slot, rows)
        for i in range(used):
            size = _piece(parts, full, seen, i, slot)
            own = top if pieces == 1 else tops[:, piece : piece + 1]
            _masked(job, psum[:rows, i, :size], mask, bias, rows, seen, slot * parts + i, scores, own)
            piece += 1
    if tail > 0:
        part, slot = full % parts, full // parts
        if full == whole:
            part, slot = 0, (full + parts - 1) // parts
        last = nl.ndarray((P, tail), dtype=nl.float32, buffer=nl.psum)
        _multiply(job, last[:rows, :], qt, kt, part, slot, rows)
        own = top if pieces == 1 else tops[:, piece : piece + 1]
        _masked(job, last[:rows, :], mask, bias, rows, seen, full, scores, own)
    if pieces > 1:
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tops, axis=1)


def _piece(parts: int, full: int, seen: int, part: int, slot: int) -> int:
    """Columns of a part in one bank, from a slot on."""
    own = (full - part + parts - 1) // parts
    return min(min(BANK // P, own - slot) * P, seen - slot * P)


def _multiply(job: Any, dst: Any, qt: Any, kt: Any, part: int, slot: int, rows: int) -> None:
    """Scores of neighbouring slots of one part of the array, as many as ``dst`` [query, key] holds."""
    chunks, size = kt.shape[1], dst.shape[1]
    columns = kt.reshape((P, chunks, kt.shape[2] * P))
    height = P // job.parts
    low = part * height
    for c in range(chunks):
        width = min(P, job.size - c * P)
        nisa.nc_matmul(
            dst=dst,
            stationary=qt[low : low + width, c, :rows],
            moving=columns[low : low + width, c, slot * P : slot * P + size],
            accumulate=c > 0,
            tile_position=(low, 0),
            tile_size=(height, P),
        )


def _masked(
    job: Any, source: Any, mask: Any, bias: Any, rows: int, seen: int, first: int, scores: Any, top: Any
) -> None:
    """Scores out of PSUM into their columns (see ``_columns``), and their maximum a row."""
    size = source.shape[1]
    in_order = job.slots == None
    part = _columns(job, scores, rows, seen, first, size, True)
    if job.inner != 0.0:
        nisa.activation(dst=part, op=nl.tanh, data=source.reshape(part.shape), scale=job.inner)
        source = part
    if bias != None:
        extra = _columns(job, bias, rows, seen, first, size, in_order)
        nisa.scalar_tensor_tensor(
            dst=part, data=source.reshape(part.shape), op0=nl.multiply, operand0=job.factor, op1=nl.add,
            operand1=extra,
        )  # fmt: skip
        source = part
    visible = _columns(job, mask, rows, seen, first, size, in_order)
    nisa.select_reduce(
        dst=part.reshape(visible.shape), predicate=visible, on_true=source.reshape(visible.shape),
        on_false=MASKED, reduce_res=top, reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_op=nl.maximum,
    )  # fmt: skip


def _weighted(job: Any, weights: Any, v: Any, rows: int, seen: int) -> Any:
    """``weights @ v`` in PSUM, [query, E]."""
    full = seen // P
    tiles = (seen + P - 1) // P
    wt = nl.ndarray((P, tiles, P), dtype=weights.dtype, buffer=nl.sbuf)
    by_dma = rows == P and weights.dtype != nl.float32
    if full > 0:
        blocks = weights[:, : full * P].reshape((P, full, P))
        if by_dma:
            nisa.dma_transpose(dst=wt[:, :full, :], src=blocks, axes=(2, 1, 0))
        else:
            _transposed(wt[:, :full, :], blocks, 0, full, rows, 0, P)
    if full < tiles:
        tail = weights[:, full * P :].reshape((P, 1, seen - full * P))
        _transposed(wt[:, full:, :], tail, 0, 1, rows, 0, seen - full * P)
    product = nl.ndarray((P, job.value_size), dtype=nl.float32, buffer=nl.psum)
    for i in range(tiles):
        width = min(P, seen - i * P)
        nisa.nc_matmul(dst=product[:rows, :], stationary=wt[:width, i, :rows], moving=v[:width, i, :], accumulate=i > 0)
    return product
