"""Experts of a mixture in decode: only the weights of experts that some token chose are read, each once.

Layouts (HBM): x [T, H], up [E, F, H] (F = 2 * I, gate rows first, or I without a gate), down [E, H, I], biases [E, F]
and [E, H] or None, all of one type. The choice comes by slots, one for each expert that may be needed: experts int32
[1, S], an index of E or more for a slot without one; after fp32 [S, T], the factor on an expert's output for each
token, 0 where the token did not choose it; before fp32 [S, T] or None, a factor on its input. Result [T, H]. T is at
most 512.

Rows of weights are read as they are stored, 128 at a time, by DMA whose address comes from the slot's expert; a slot
without one reads nothing (out of bounds, skipped), and what it computes from the weights before it is left out.
Each block of 128 x 128 weights is transposed on the tensor engine and is then the stationary side: the inner
activations come out as [I, T], which is how the second product takes them, and the result as [H, T]. It is summed
over the slots and transposed at the end. Every step is rounded to the type of x as the reference's are.

Cost bound: DMA, (F + I) * H elements for each chosen expert.

Two programs of a logical core divide I in the first product, exchange their inner activations slot by slot through
``sendrecv``, and divide H in the second.
"""

from dataclasses import dataclass
from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.mlp import combine
from vllm_neuron.nki.kernels.tiles import BANK_BYTES, P, blocks, item, load_transposed, program, share


@dataclass
class Job(nl.NKIObject):
    """Operands of one call, how two programs divide it, and the tiles that weights are read into in turn.

    ``halves`` are the parts of I, the second 0 when one program has all; this one computes the part ``own``, and the
    rows ``first`` to ``last`` of H.
    """

    up: Any
    down: Any
    up_bias: Any
    down_bias: Any
    experts: Any
    rule: Any
    halves: Any
    own: int
    first: int
    last: int
    rows: Any
    inner_rows: Any
    turn: int


@nki.jit
def moe_decode_kernel(
    x: Any,
    up: Any,
    down: Any,
    experts: Any,
    after: Any,
    before: Any = None,
    up_bias: Any = None,
    down_bias: Any = None,
    act: str = "silu",
    gated: bool = True,
    clamp_limit: Any = None,
    clamp_alpha: Any = None,
    up_shift: float = 0.0,
) -> Any:
    """See the module.

    ``clamp_limit`` cuts gate above and up on both sides; with ``clamp_alpha`` the activation is
    ``gate * sigmoid(clamp_alpha * gate)`` in place of ``act``; ``up_shift`` is added to up after the limits.
    """
    tokens, height = x.shape
    out = nl.ndarray((tokens, height), dtype=x.dtype, buffer=nl.shared_hbm)
    slots = experts.shape[1]
    index, programs = program()
    halves, own = _halves(down.shape[2], programs), 0
    first, last = 0, height
    if halves[1] > 0:
        own = index
        first, last = share(height, P)
    if index == 0 or halves[1] > 0:
        chosen = nl.ndarray((1, slots), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=chosen, src=experts)
        job = Job(
            up=up, down=down, up_bias=up_bias, down_bias=down_bias, experts=chosen, halves=halves, own=own,
            first=first, last=last, rule=(act, gated, clamp_limit, clamp_alpha, up_shift), turn=0,
            rows=_weight_tiles(height, x.dtype), inner_rows=_weight_tiles(down.shape[2], x.dtype),
        )  # fmt: skip
        _all(job, x, out, slots, after, before)
    return out


def _halves(inner: int, programs: int) -> Any:
    """I in two parts, whole blocks of 128 where there are several; the second is 0 where one program has all."""
    if programs == 1 or inner == 1:
        return inner, 0
    half = (inner + 1) // 2
    if inner >= 2 * P:
        half = (half + P - 1) // P * P
    return half, inner - half


def _all(job: Any, x: Any, out: Any, slots: int, after: Any, before: Any) -> None:
    """This program's part of every slot, summed and written."""
    tokens, height = x.shape
    kept = load_transposed(x, 0, tokens)
    total = nl.ndarray((P, blocks(height), tokens), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for slot in range(slots):
        scaled = kept
        if before != None:
            scaled = _scaled(kept, height, _factors(before, slot))
        parts = _exchanged(job, _inner(job, slot, scaled, tokens))
        _outer(job, slot, parts, _factors(after, slot), total)
    _store(job, out, total)


def _weight_tiles(width: int, dtype: Any) -> Any:
    """Two tiles [128, width] of zeros: a slot without an expert must find numbers."""
    tiles = []
    for _i in range(2):
        tile = nl.ndarray((P, width), dtype=dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        tiles.append(tile)
    return tiles


def _scaled(kept: Any, height: int, factor: Any) -> Any:
    """x^T times a factor a token, rounded to the type of x."""
    result = nl.ndarray(kept.shape, dtype=kept.dtype, buffer=nl.sbuf)
    for c in range(blocks(height)):
        width = min(P, height - c * P)
        nisa.tensor_tensor(dst=result[:width, c, :], data1=kept[:width, c, :], data2=factor[:width, :], op=nl.multiply)
    return result


def _factors(table: Any, slot: int) -> Any:
    """Factors of one slot on all partitions, fp32 [128, T]."""
    tokens = table.shape[1]
    tile = nl.ndarray((P, tokens), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=table.ap([[0, P], [1, tokens]], offset=slot * tokens))
    return tile


def _next(job: Any, tiles: Any) -> Any:
    """The tile of the two that was used less recently."""
    job.turn += 1
    return tiles[job.turn % 2]


def _rows(job: Any, tile: Any, weights: Any, slot: int, row: int, count: int, width: int) -> Any:
    """``weights[expert, row : row + count]`` of a slot's expert, as [count, width]."""
    source = weights.ap(
        [[width, count], [1, width]],
        offset=row * width,
        scalar_offset=job.experts[0:1, slot : slot + 1],
        indirect_dim=0,
    )
    nisa.dma_copy(dst=tile[:count, :width], src=source, oob_mode=nisa.oob_mode.skip)
    return tile[:count, :width]


def _bias(job: Any, biases: Any, slot: int, row: int, count: int) -> Any:
    """``biases[expert, row : row + count]`` of a slot's expert, fp32 [count, 1]; zero for a slot without one."""
    own = nl.ndarray((count, 1), dtype=biases.dtype, buffer=nl.sbuf)
    nisa.memset(dst=own, value=0.0)
    source = biases.ap(
        [[1, count], [1, 1]], offset=row, scalar_offset=job.experts[0:1, slot : slot + 1], indirect_dim=0
    )
    nisa.dma_copy(dst=own, src=source, oob_mode=nisa.oob_mode.skip)
    wide = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=own)
    return wide


def _multiply(psum: Any, weights: Any, moving: Any, started: bool) -> None:
    """Add ``weights [rows, width]`` times ``moving [width, T]`` (in blocks of 128) to ``psum`` [rows, T].

    A PSUM bank of transposed blocks at a time; banks leave by the vector and the scalar engine in turn, since one alone
    would take longer than the DMA of the weights.
    """
    rows, width = weights.shape
    per = max(1, BANK_BYTES // (rows * item(weights.dtype)))
    for first in range(0, blocks(width), per):
        count = min(per, blocks(width) - first)
        bank = nl.ndarray((P, count, rows), dtype=weights.dtype, buffer=nl.psum)
        turned = nl.ndarray((P, count, rows), dtype=weights.dtype, buffer=nl.sbuf)
        full = min(count, width // P - first)
        for i in range(count):
            at = (first + i) * P
            n = min(P, width - at)
            nisa.nc_transpose(dst=bank[:n, i, :], data=weights[:, at : at + n], engine=nisa.engine.tensor)
        engine = nisa.engine.scalar if first // per % 2 == 0 else nisa.engine.vector
        if full > 0:
            nisa.tensor_copy(dst=turned[:, :full, :], src=bank[:, :full, :], engine=engine)
        if full < count:
            n = width % P
            nisa.tensor_copy(dst=turned[:n, full, :], src=bank[:n, full, :], engine=engine)
        for i in range(count):
            n = min(P, width - (first + i) * P)
            nisa.nc_matmul(
                dst=psum, stationary=turned[:n, i, :], moving=moving[:n, first + i, :],
                accumulate=started or first + i > 0,
            )  # fmt: skip


def _part(job: Any, slot: int, kept: Any, row: int, count: int, tokens: int) -> Any:
    """Rows of the first product, with their bias."""
    weights = _rows(job, _next(job, job.rows), job.up, slot, row, count, job.up.shape[2])
    psum = nl.ndarray((count, tokens), dtype=nl.float32, buffer=nl.psum)
    _multiply(psum, weights, kept, False)
    if job.up_bias == None:
        return psum
    tile = nl.ndarray((count, tokens), dtype=kept.dtype, buffer=nl.sbuf)
    bias = _bias(job, job.up_bias, slot, row, count)
    nisa.tensor_scalar(dst=tile, data=psum, op0=nl.add, operand0=bias)
    return tile


def _inner(job: Any, slot: int, kept: Any, tokens: int) -> Any:
    """Inner activations of one expert: this program's part of I, [128, block, T]."""
    size = job.halves[job.own]
    start = job.own * job.halves[0]
    turned = nl.ndarray((P, blocks(job.halves[0]), tokens), dtype=kept.dtype, buffer=nl.sbuf)
    if job.halves[1] > 0:
        nisa.memset(dst=turned, value=0.0)
    for c in range(blocks(size)):
        count = min(P, size - c * P)
        row = start + c * P
        gate = _part(job, slot, kept, row, count, tokens)
        up = gate
        if job.rule[1]:
            up = _part(job, slot, kept, job.down.shape[2] + row, count, tokens)
        combine(turned[:count, c, :], gate, up, job.rule)
    return turned


def _exchanged(job: Any, turned: Any) -> Any:
    """Both parts of the inner activations, as a list."""
    parts = [turned]
    if job.halves[1] > 0:
        other = nl.ndarray(turned.shape, dtype=turned.dtype, buffer=nl.sbuf)
        peer = 1 - job.own
        nisa.sendrecv(src=turned, dst=other, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
        parts = [turned, other] if job.own == 0 else [other, turned]
    return parts


def _outer(job: Any, slot: int, parts: Any, factor: Any, total: Any) -> None:
    """Add one expert's output, times the factor of each token that chose it, to ``total`` [128, block of H, T]."""
    inner, tokens = job.down.shape[2], parts[0].shape[2]
    chosen = nl.ndarray(factor.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=chosen, data=factor, op0=nl.not_equal, operand0=0.0)
    for row in range(job.first, job.last, P):
        count = min(P, job.last - row)
        weights = _rows(job, _next(job, job.inner_rows), job.down, slot, row, count, inner)
        psum = nl.ndarray((count, tokens), dtype=nl.float32, buffer=nl.psum)
        start = 0
        for i in range(len(parts)):
            _multiply(psum, weights[:, start : start + job.halves[i]], parts[i], i > 0)
            start += job.halves[i]
        product = nl.ndarray((count, tokens), dtype=parts[0].dtype, buffer=nl.sbuf)
        if job.down_bias == None:
            nisa.tensor_copy(dst=product, src=psum)
        else:
            bias = _bias(job, job.down_bias, slot, row, count)
            nisa.tensor_scalar(dst=product, data=psum, op0=nl.add, operand0=bias)
        nisa.tensor_tensor(dst=product, data1=product, data2=factor[:count, :], op=nl.multiply)
        where = total[:count, row // P, :]
        nisa.tensor_tensor(dst=product, data1=where, data2=product, op=nl.add)
        # Not by the factor alone: an expert may give infinity for a token that did not choose it, and 0 * inf is NaN.
        nisa.tensor_copy_predicated(dst=where, src=product, predicate=chosen[:count, :])


def _store(job: Any, out: Any, total: Any) -> None:
    """Transpose this program's rows of H back to [T, H] and write them."""
    tokens = out.shape[0]
    for row in range(job.first, job.last, P):
        width = min(P, job.last - row)
        for t in range(0, tokens, P):
            count = min(P, tokens - t)
            psum = nl.ndarray((count, width), dtype=total.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=psum, data=total[:width, row // P, t : t + count], engine=nisa.engine.tensor)
            tile = nl.ndarray((count, width), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=psum)
            nisa.dma_copy(dst=out[t : t + count, row : row + width], src=tile)
