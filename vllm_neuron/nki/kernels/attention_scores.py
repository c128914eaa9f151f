"""Scores of prefill attention: products of q^T and k^T on parts of the array, masked, and their maximum a row.

Layouts and row tiling: see ``flash_attention``. Cost bound: keys / parts cycles of the tensor engine for a head and
tile of 128 queries and each 128 of D; one pass of the vector engine over the scores.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nl

P = 128
BANK = 512
MASKED = -1.0e30


def masked_scores(
    job: Any, qt: Any, kt: Any, whole: int, mask: Any, bias: Any, rows: int, seen: int, scores: Any, top: Any
) -> None:
    """Masked scores into ``scores`` [query, key], and their maximum a row into ``top`` [query, 1].

    ``whole``: tiles of 128 keys in the section, see ``load_section``.
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


def _columns(job: Any, tile: Any, rows: int, seen: int, first: int, size: int, ordered: bool) -> Any:
    """The part of a tile [query, key] for ``size`` columns of the scores: blocks ``first``, ``first + parts``, ...

    Blocks are those of the scores in an ordered tile, else of ``load_section``; columns after the last whole block are
    in order.
    """
    full = seen // P
    if first >= full or full == 1 or (ordered and job.parts == 1):
        return tile[:rows, first * P : first * P + size]
    if ordered:
        blocks = tile[:rows, : full * P].reshape((rows, full, P))
    else:
        blocks = tile[:rows, : full * P].reshape((rows, P, full)).permute((0, 2, 1))
    return blocks[:, first : first + size // P * job.parts - job.parts + 1 : job.parts, :]
