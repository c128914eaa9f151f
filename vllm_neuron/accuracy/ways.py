"""The ways in which a runtime runs the same tokens: whole, padded, one by one, in chunks, batched, on several ranks.

Whatever the way, every token's hidden states and logits are the same. A way that gives others says in which phase a
fault shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.accuracy.paged import Paged, Span
from vllm_neuron.step import Phase, Step

Prompts = Sequence[Sequence[int]]
DECODED, PAD = 8, 5


@dataclass(frozen=True)
class Piece:
    """One step of a way: its spans, its form, the padded tokens behind."""

    spans: tuple[Span, ...]
    phase: Phase
    pad: int = 0


@dataclass(frozen=True)
class Way:
    """One way to run prompts.

    Attributes:
        name: as in a place: ``prefill``, ``decode``, ...
        pieces: of given prompts, in order.
        ranks: tensor-parallel ranks, in threads.
        block_size: tokens a block.
        prepare: called with the caches before the first step.
    """

    name: str
    pieces: Callable[[Prompts], Iterator[Piece]]
    ranks: int = 1
    block_size: int = 4
    prepare: Callable[[Paged], None] | None = None

    def steps(self, model: object, prompts: Prompts) -> Iterator[tuple[Step, Tensor]]:
        """Bind caches to the model; each step with the row [T] of each token, -1 for padded ones.

        Rows count all prompts' tokens, one prompt below the other.
        """
        longest = max(len(ids) for ids in prompts)
        paged = Paged(model, rows=len(prompts), max_tokens=longest, block_size=self.block_size)  # type: ignore[arg-type]
        if self.prepare is not None:
            self.prepare(paged)
        first = [0, *itertools.accumulate(len(ids) for ids in prompts)]
        for piece in self.pieces(prompts):
            step = paged.step(piece.spans, piece.phase, pad=piece.pad)
            rows = [torch.arange(len(s.ids)) + first[s.row] + s.start for s in piece.spans]
            yield step, torch.cat((*rows, torch.full((piece.pad,), -1)))


def span(row: int, ids: Sequence[int], start: int, stop: int) -> Span:
    """Tokens ``start .. stop`` of a prompt."""
    return Span(row, start, ids[start:stop])


def _decoded(ids: Sequence[int]) -> int:
    return min(DECODED, len(ids) // 2)


def whole(prompts: Prompts) -> Iterator[Piece]:
    """Each prompt in one step, which reads no cache."""
    for row, ids in enumerate(prompts):
        yield Piece((span(row, ids, 0, len(ids)),), Phase.PREFILL)


def padded(prompts: Prompts) -> Iterator[Piece]:
    """The same with padded tokens behind."""
    for row, ids in enumerate(prompts):
        yield Piece((span(row, ids, 0, len(ids)),), Phase.PREFILL, PAD)


def decode(prompts: Prompts) -> Iterator[Piece]:
    """Each prompt but its last tokens in one step, then these one by one."""
    for row, ids in enumerate(prompts):
        edge = len(ids) - _decoded(ids)
        yield Piece((span(row, ids, 0, edge),), Phase.PREFILL, 3)
        for at in range(edge, len(ids)):
            yield Piece((span(row, ids, at, at + 1),), Phase.DECODE)


def chunks(prompts: Prompts) -> Iterator[Piece]:
    """Each prompt in chunks of uneven length, some of them padded."""
    for row, ids in enumerate(prompts):
        size = len(ids)
        edges = sorted({0, size // 7 + 2, size // 7 + 3, size // 2, size})
        for number, (start, stop) in enumerate(itertools.pairwise(e for e in edges if e <= size)):
            phase = Phase.EXTEND if start else Phase.PREFILL
            yield Piece((span(row, ids, start, stop),), phase, PAD * (number % 2))


def batch(prompts: Prompts) -> Iterator[Piece]:
    """All prompts packed in one padded step, then their last tokens side by side with padded rows."""
    edges = [len(ids) - _decoded(ids) for ids in prompts]
    heads = (span(row, ids, 0, edge) for row, (ids, edge) in enumerate(zip(prompts, edges, strict=True)))
    yield Piece(tuple(heads), Phase.PREFILL, PAD)
    for offset in range(max(_decoded(ids) for ids in prompts)):
        spans = tuple(
            span(row, ids, edge + offset, edge + offset + 1)
            for row, (ids, edge) in enumerate(zip(prompts, edges, strict=True))
            if edge + offset < len(ids)
        )
        yield Piece(spans, Phase.DECODE, 2)


def mixed(prompts: Prompts) -> Iterator[Piece]:
    """Chunks of all but the last tokens, then these one by one."""
    for row, ids in enumerate(prompts):
        edge = len(ids) - _decoded(ids)
        half = max(edge // 2, 1)
        yield Piece((span(row, ids, 0, half),), Phase.PREFILL, 3)
        if half < edge:
            yield Piece((span(row, ids, half, edge),), Phase.EXTEND)
        for at in range(edge, len(ids)):
            yield Piece((span(row, ids, at, at + 1),), Phase.DECODE)


PREFILL = Way("prefill", whole)
PADDED = Way("padded prefill", padded)
DECODE = Way("decode", decode)
CHUNKS = Way("chunked prefill", chunks)
BATCH = Way("batch", batch)
TP2 = Way("TP 2", mixed, ranks=2)
WAYS = (PREFILL, PADDED, DECODE, CHUNKS, BATCH, TP2)
