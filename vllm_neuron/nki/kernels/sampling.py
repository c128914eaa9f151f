"""The largest logits of each row: argmax and top-k over one rank's shard of the vocabulary.

Layouts (HBM): logits [B, V], fp32 or 2 bytes; results fp32 [B, k] and int32 [B, k], indices within the shard.

A row is folded over partitions: with B rows, up to 128 / B pieces of V / pieces columns each, so that all lanes of the
vector engine search at once. Each piece gives its best values (max8, 8 a pass) and where they are (nc_find_index8);
these candidates then lie side by side in one partition a row, where the second search runs. Indices are kept in fp32,
exact below 2 ** 24.

Cost bound: DMA, B * V logits from HBM.

Two programs of a logical core divide the columns and exchange their best through ``sendrecv``.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl

P = 128
EIGHT = 8
PIECE = 16384
MOST_CANDIDATES = 8192
NOTHING = float("-inf")
BEYOND = 16777216.0


@nki.jit
def argmax_kernel(logits: Any) -> Any:
    """The largest logit of each row, fp32 [B, 1], and its index, int32 [B, 1]; the lowest index of a tie."""
    batch, vocab = logits.shape
    values = nl.ndarray((batch, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    indices = nl.ndarray((batch, 1), dtype=nl.int32, buffer=nl.shared_hbm)
    programs, program = _programs(vocab, EIGHT)
    share = vocab // programs
    start = program * share
    size = share if program + 1 < programs else vocab - start
    for first in range(0, batch if program < programs else 0, P):
        rows = min(P, batch - first)
        found = _candidates(logits, first, rows, start, size, 1)
        best, index = _first_of(found[0], found[1])
        if programs > 1:
            best, index = _exchanged(best, index, 1, program)
            best, index = _first_of(best, index)
        if program == 0:
            whole = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=whole, src=index)
            nisa.dma_copy(dst=values[first : first + rows, :], src=best)
            nisa.dma_copy(dst=indices[first : first + rows, :], src=whole)
    return values, indices


@nki.jit
def topk_kernel(logits: Any, k: int) -> Any:
    """The k largest logits of each row in falling order, fp32 [B, k], and their indices, int32 [B, k].

    Of equal logits the one with the lower index comes first within a piece of a row, and may come later across the
    pieces. Logits of minus infinity among the k may name an index twice.
    """
    batch, vocab = logits.shape
    values = nl.ndarray((batch, k), dtype=nl.float32, buffer=nl.shared_hbm)
    indices = nl.ndarray((batch, k), dtype=nl.int32, buffer=nl.shared_hbm)
    programs, program = _programs(vocab, k)
    share = vocab // programs
    start = program * share
    size = share if program + 1 < programs else vocab - start
    for first in range(0, batch if program < programs else 0, P):
        rows = min(P, batch - first)
        found = _candidates(logits, first, rows, start, size, k)
        best, index = _best_of(found[0], found[1], k)
        if programs > 1:
            best, index = _exchanged(best, index, k, program)
            best, index = _best_of(best, index, k)
        if program == 0:
            whole = nl.ndarray((rows, k), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=whole, src=index[:, :k])
            nisa.dma_copy(dst=values[first : first + rows, :], src=best[:, :k])
            nisa.dma_copy(dst=indices[first : first + rows, :], src=whole)
    return values, indices


def _programs(vocab: int, k: int) -> Any:
    """Number of programs that share the columns, and which one this is; one, unless each has k columns or more.

    A program whose index is not below the number has nothing to do.
    """
    if nl.program_ndim() == 0:
        return 1, 0
    programs, program = nl.num_programs(0), nl.program_id(0)
    if programs > 1 and vocab < programs * max(k, EIGHT):
        return 1, program
    return programs, program


def _up8(n: int) -> int:
    """The next multiple of 8."""
    return (n + EIGHT - 1) // EIGHT * EIGHT


def _pieces(rows: int, size: int, k: int) -> int:
    """A power of two: pieces of a row that fit the partitions, are not tiny, and do not give too many candidates."""
    pieces = 1
    while 2 * pieces * rows <= P and size // (2 * pieces) >= max(EIGHT, k):
        pieces = 2 * pieces
    while pieces > 1 and pieces * ((size // pieces + PIECE - 1) // PIECE * _up8(k) + EIGHT) > MOST_CANDIDATES:
        pieces = pieces // 2
    return pieces


def _candidates(logits: Any, first: int, rows: int, start: int, size: int, k: int) -> Any:
    """The best of each piece of ``size`` columns from ``start`` on: values and indices [rows, candidates]."""
    vocab = logits.shape[1]
    pieces = _pieces(rows, size, k)
    width, rest = size // pieces, size % pieces
    used = rows * pieces
    parts = (width + PIECE - 1) // PIECE
    kept = _up8(k)
    count = parts * kept + (EIGHT if rest > 0 else 0)
    values = nl.ndarray((used, count), dtype=nl.float32, buffer=nl.sbuf)
    indices = nl.ndarray((used, count), dtype=nl.float32, buffer=nl.sbuf)
    base = _piece_numbers(used, pieces)
    origin = nl.ndarray((used, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=origin, data=base, op0=nl.multiply, operand0=float(width))
    for part in range(parts):
        at = part * PIECE
        columns = min(PIECE, width - at)
        source = logits.ap([[vocab, rows], [width, pieces], [1, columns]], offset=first * vocab + start + at)
        tile = _loaded(source, logits.dtype, used, columns)
        place = part * kept
        _search(
            tile, kept, values[:, place : place + kept], indices[:, place : place + kept], origin, float(start + at)
        )
        tile = None
    if rest > 0:
        place = parts * kept
        _tail(
            logits, first, rows, start + pieces * width, rest, pieces, base,
            values[:, place : place + EIGHT], indices[:, place : place + EIGHT],
        )  # fmt: skip
    if pieces == 1:
        return values, indices
    row_values = nl.ndarray((rows, pieces * count), dtype=nl.float32, buffer=nl.sbuf)
    row_indices = nl.ndarray((rows, pieces * count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=row_values, src=values)
    nisa.dma_copy(dst=row_indices, src=indices)
    return row_values, row_indices


def _piece_numbers(used: int, pieces: int) -> Any:
    """Which piece of its row a partition holds, fp32 [used, 1]."""
    number = nl.ndarray((used, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=number, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(dst=number, data=number, op0=nl.bitwise_and, operand0=pieces - 1)
    result = nl.ndarray((used, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=number)
    return result


def _loaded(source: Any, dtype: Any, used: int, columns: int) -> Any:
    """Logits in fp32, at least 8 columns wide."""
    wide = max(EIGHT, columns)
    tile = nl.ndarray((used, wide), dtype=nl.float32, buffer=nl.sbuf)
    if columns < wide:
        nisa.memset(dst=tile, value=NOTHING)
    if dtype == nl.float32:
        nisa.dma_copy(dst=tile[:, :columns], src=source)
    else:
        narrow = nl.ndarray((used, columns), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=narrow, src=source)
        nisa.tensor_copy(dst=tile[:, :columns], src=narrow)
    return tile


def _search(tile: Any, count: int, values: Any, indices: Any, origin: Any, offset: float) -> None:
    """The ``count`` largest of each partition, 8 a pass; an index counts from ``origin + offset``. ``tile`` is lost."""
    used = tile.shape[0]
    where = nl.ndarray((used, EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
    for at in range(0, count, EIGHT):
        best = values[:, at : at + EIGHT]
        nisa.max8(dst=best, src=tile)
        nisa.nc_find_index8(dst=where, data=tile, vals=best)
        if at + EIGHT < count:
            nisa.nc_match_replace8(dst=tile, data=tile, vals=best, imm=NOTHING)
        nisa.tensor_scalar(
            dst=indices[:, at : at + EIGHT], data=where, op0=nl.add, operand0=origin, op1=nl.add, operand1=offset
        )


def _tail(
    logits: Any, first: int, rows: int, start: int, rest: int, pieces: int, base: Any, values: Any, indices: Any
) -> None:
    """The last ``rest`` columns of a row, one each in the first of its partitions."""
    vocab = logits.shape[1]
    nisa.memset(dst=values, value=NOTHING)
    narrow = nl.ndarray((rows * pieces, 1), dtype=logits.dtype, buffer=nl.sbuf)
    nisa.memset(dst=narrow, value=NOTHING)
    for row in range(rows):
        source = logits.ap([[1, rest], [1, 1]], offset=(first + row) * vocab + start)
        nisa.dma_copy(dst=narrow[row * pieces : row * pieces + rest, :], src=source)
    nisa.tensor_copy(dst=values[:, 0:1], src=narrow)
    nisa.tensor_scalar(dst=indices, data=base.broadcast(1, EIGHT), op0=nl.add, operand0=float(start))


def _first_of(values: Any, indices: Any) -> Any:
    """The largest of a row and the lowest of its indices, both fp32 [rows, 1]."""
    rows = values.shape[0]
    best = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=best, op=nl.maximum, data=values, axis=1)
    marked = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=marked, data=values, op0=nl.equal, operand0=best, op1=nl.multiply, operand1=-BEYOND)
    nisa.tensor_tensor(dst=marked, data1=marked, data2=indices, op=nl.add)
    index = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=index, op=nl.minimum, data=marked, axis=1)
    nisa.tensor_scalar(dst=index, data=index, op0=nl.add, operand0=BEYOND)
    return best, index


def _best_of(values: Any, indices: Any, k: int) -> Any:
    """The k largest of a row, in a multiple of 8 columns, and their indices; ``values`` is lost."""
    rows = values.shape[0]
    kept = _up8(k)
    best = nl.ndarray((rows, kept), dtype=nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((rows, kept), dtype=nl.uint32, buffer=nl.sbuf)
    for at in range(0, kept, EIGHT):
        eight = best[:, at : at + EIGHT]
        nisa.max8(dst=eight, src=values)
        nisa.nc_find_index8(dst=places[:, at : at + EIGHT], data=values, vals=eight)
        if at + EIGHT < kept:
            nisa.nc_match_replace8(dst=values, data=values, vals=eight, imm=NOTHING)
    index = nl.ndarray((rows, kept), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=index, data=indices, indices=places)
    return best, index


def _exchanged(best: Any, index: Any, k: int, program: int) -> Any:
    """The results of both programs side by side, those of program 0 first."""
    rows, kept = best.shape
    peer = 1 - program
    values = nl.ndarray((rows, 2 * kept), dtype=nl.float32, buffer=nl.sbuf)
    indices = nl.ndarray((rows, 2 * kept), dtype=nl.float32, buffer=nl.sbuf)
    mine, theirs = program * kept, peer * kept
    nisa.tensor_copy(dst=values[:, mine : mine + kept], src=best)
    nisa.tensor_copy(dst=indices[:, mine : mine + kept], src=index)
    part = values[:, theirs : theirs + kept]
    nisa.sendrecv(src=best, dst=part, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    part = indices[:, theirs : theirs + kept]
    nisa.sendrecv(src=index, dst=part, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    return values, indices
