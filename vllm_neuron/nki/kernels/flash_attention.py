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

Band: what is declared of causality and window bounds the keys of each query tile, and key blocks outside are left out.
Dense, tiles of a bundle share sections and take their own blocks of them. Paged, blocks are spread over a section (see
``load_section``), so one or few tiles have sections of their own, and keys are gathered again for the next ones.

Cost bound: the tensor engine, 2 * S cycles for a tile and head at D = E = 128, about half of that with ``causal``, and
2 * window with a window. What is left above it: the rest of the blocks at both edges of the band, with row tiling
before a window up to a block for each part; an odd block that has a part of the array for itself; D between 65 and 127,
which fills the array as 128 does; E below 64, as a product takes no less than 64 cycles; transposes of fp32 and of
paged keys.
The vector engine's pass over the fp32 scores takes longer than the products by the counts, 1.3 times at D = 128 and 2.7
times at 64, so row tiling leaves the tensor engine time rather than makes a call shorter.

Two programs of a logical core divide the KV heads; else the query tiles in turn; else the query heads of the one KV
head.
"""

from dataclasses import dataclass
from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.attention_load import load_queries, load_section, transposed
from vllm_neuron.nki.kernels.attention_scores import masked_scores

P = 128
SECTION = 2048
STATE_BYTES = 48 * 1024


@dataclass
class Job(nl.NKIObject):
    """Sizes and operands of one call; a score leaves PSUM as ``tanh(score * inner)`` with a soft cap, else as it is,
    and counts ``factor`` times. Query i sees no key outside of i + low to i + high; up to ``sharing`` query tiles have
    their sections in common.
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
    low: int
    high: int
    sharing: int
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
    window: Any = None,
) -> Any:
    """Attention over dense keys and values.

    Args:
        q, k, v, mask: see the module; one type, fp32 or 2 bytes.
        scale: factor on the scores, above 0.
        softcap: scores become ``softcap * tanh(score / softcap)``, or None.
        sinks: fp32 [1, N], one more logit a head that takes weight and gives nothing, or None.
        bias: fp32 [B, N, Q, S], added after the soft cap, or None.
        causal: key j is masked for query i where ``j > i + S - Q``, and never read.
        window: the mask hides key j from query i where ``j <= i + S - Q - window``, so that blocks of such keys are
            left out; or None.
    """
    batch, queries, heads, size = q.shape
    keys, kv_heads, value_size = k.shape[1], k.shape[2], v.shape[3]
    out = nl.ndarray((batch, queries, heads, value_size), dtype=q.dtype, buffer=nl.shared_hbm)
    factor, inner = _factors(scale, softcap)
    low = -queries if window == None else keys - queries - window + 1
    job = Job(
        q=q, k=k, v=v, slots=None, mask=mask, bias=bias, out=out, queries=queries, keys=keys, kv_heads=kv_heads,
        sinks=_sinks(sinks, factor, bias), group=heads // kv_heads, size=size,
        value_size=value_size, value_start=0, run=1, factor=factor, inner=inner, causal=causal,
        low=low, high=keys - queries if causal else keys, sharing=queries, parts=_parts(size),
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
    window: Any = None,
    block_size: int = 1,
) -> Any:
    """Attention of several queries over the paged cache, keys and values gathered once for each bundle of query tiles.

    Args:
        q, pages, slots, mask, scale, softcap, sinks, bias: see the module and ``flash_attention_kernel``.
        kv_heads: K.
        value_size: E.
        value_start: column of the first value in a row: K * D, or 0 where keys are their own values (latent).
        run: a power of two that divides the block size: so many slots follow each other in memory.
        window, block_size: the mask shows query i keys i to ``i + window + block_size - 2`` only, and other blocks are
            left out; or None.
    """
    batch, queries, heads, size = q.shape
    out = nl.ndarray((batch, queries, heads, value_size), dtype=q.dtype, buffer=nl.shared_hbm)
    factor, inner = _factors(scale, softcap)
    keys, group = slots.shape[1], heads // kv_heads
    low, high, sharing = -queries, keys, queries
    if window != None:
        low, high, sharing = 0, window + block_size - 2, _sharing(window, group)
    job = Job(
        q=q, k=pages, v=pages, slots=slots, mask=mask, bias=bias, out=out, queries=queries, keys=keys,
        kv_heads=kv_heads, sinks=_sinks(sinks, factor, bias), group=group,
        size=size, value_size=value_size, value_start=value_start, run=run, factor=factor, inner=inner, causal=False,
        low=low, high=high, sharing=sharing, parts=_parts(size),
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


def _sharing(window: int, group: int) -> int:
    """Query tiles that share gathered keys: more multiply more hidden keys, fewer transpose each key more often."""
    tiles = 1
    for more in range(2, 9):
        if more * more * 2 * P * group <= window:
            tiles = more
    return tiles


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
    bundle = max(1, min(job.sharing, STATE_BYTES // (heads * unit)))
    loaded = None
    if job.keys <= SECTION and job.sharing >= tiles:
        loaded = load_section(job, b, kv, 0, job.keys)
    for start in range(0, own, bundle):
        count = min(bundle, own - start)
        for g in range(first_g, last_g, heads):
            _bundle(job, b, kv, first_tile + start * step, step, count, g, min(heads, last_g - g), loaded)


def _bundle(job: Any, b: int, kv: int, first_tile: int, step: int, count: int, g: int, heads: int, loaded: Any) -> None:
    """``count`` query tiles, ``step`` apart, of ``heads`` query heads from ``g`` on."""
    low, high = _reached(job, first_tile * P, min(job.queries, (first_tile + (count - 1) * step + 1) * P))
    if loaded != None:
        low, high = 0, job.keys
    state = State(
        qt=load_queries(job, b, kv, first_tile, step, count, g, heads),
        top=nl.ndarray((P, count, heads), dtype=nl.float32, buffer=nl.sbuf),
        total=nl.ndarray((P, count, heads), dtype=nl.float32, buffer=nl.sbuf),
        product=None,
    )
    if high - low > SECTION:
        state.product = nl.ndarray((P, count, heads, job.value_size), dtype=nl.float32, buffer=nl.sbuf)
    kt_v = loaded
    for start in range(low, high, SECTION):
        size = min(SECTION, high - start)
        if loaded == None:
            kt_v = None
            kt_v = load_section(job, b, kv, start, size)
        for i in range(count):
            q0 = (first_tile + i * step) * P
            own_low, own_high = low, high
            if job.slots == None:
                own_low, own_high = _reached(job, q0, min(job.queries, q0 + P))
            _tiles(job, state, kt_v, b, kv * job.group + g, heads, i, q0, start, size, own_low, own_high)


def _reached(job: Any, first: int, last: int) -> Any:
    """First key and the one after the last for queries ``first`` up to before ``last``, from a whole tile on."""
    return max(0, first + job.low) // P * P, min(job.keys, last + job.high)


def _tiles(
    job: Any,
    state: Any,
    kt_v: Any,
    b: int,
    head: int,
    heads: int,
    i: int,
    q0: int,
    start: int,
    size: int,
    low: int,
    high: int,
) -> None:
    """All heads of query tile ``i``, which sees keys ``low`` up to before ``high``, over one section, and their results
    after the last.
    """
    rows = min(P, job.queries - q0)
    skipped = max(0, low - start) // (P * job.parts) * job.parts
    begin = start + skipped * P
    seen = min(start + size, high) - begin
    if seen > 0 and low < start + size:
        own = kt_v[0][:, :, skipped // job.parts :, :], kt_v[1][:, skipped:, :], kt_v[2] - skipped
        mask = nl.ndarray((P, seen), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=mask[:rows, :], src=job.mask[b, q0 : q0 + rows, begin : begin + seen])
        if job.causal and q0 + job.high < begin + seen - 1:
            _after(job, mask, q0, rows, begin, seen)
        result = None
        if begin + seen == high:
            result = nl.ndarray((P, heads, job.value_size), dtype=job.out.dtype, buffer=nl.sbuf)
        for j in range(heads):
            bias = _bias(job, b, head + j, q0, rows, begin, seen)
            _tile(job, state, own, mask, bias, head + j, i, j, rows, seen, low >= start, result)
        if result != None:
            nisa.dma_copy(dst=job.out[b, q0 : q0 + rows, head : head + heads, :], src=result[:rows, :, :])


def _after(job: Any, mask: Any, q0: int, rows: int, start: int, seen: int) -> None:
    """Clear the mask where a key comes after its query: key ``start + j``, query ``q0 + p``."""
    last = q0 + job.high - start
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


def _bias(job: Any, b: int, head: int, q0: int, rows: int, start: int, seen: int) -> Any:
    """The bias of one head, query tile and section, or None."""
    if job.bias == None:
        return None
    tile = nl.ndarray((P, seen), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:rows, :], src=job.bias[b, head, q0 : q0 + rows, start : start + seen])
    return tile


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
    masked_scores(job, state.qt[:, :, i, j, :], kt_v[0], kt_v[2], mask, bias, rows, seen, scores, top)
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
            transposed(wt[:, :full, :], blocks, 0, full, rows, 0, P)
    if full < tiles:
        tail = weights[:, full * P :].reshape((P, 1, seen - full * P))
        transposed(wt[:, full:, :], tail, 0, 1, rows, 0, seen - full * P)
    product = nl.ndarray((P, job.value_size), dtype=nl.float32, buffer=nl.psum)
    for i in range(tiles):
        width = min(P, seen - i * P)
        nisa.nc_matmul(dst=product[:rows, :], stationary=wt[:width, i, :rows], moving=v[:width, i, :], accumulate=i > 0)
    return product
