"""A paged cache for a few sequences and the steps over it, without vLLM: what sessions and bisections drive a model by.

The blocks are dealt out of order, so that a model that reads the wrong slot is found out, and every unwritten slot
holds a large finite value that no mask may let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.errors import ShapeError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec
from vllm_neuron.step import KVView, Phase, Step

UNWRITTEN = 1e4
NEVER = 2**40


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one sequence.

    Attributes:
        row: which sequence.
        start: position of the first token.
        ids: the tokens.
    """

    row: int
    start: int
    ids: Sequence[int]


class Paged:
    """The caches of a model for some sequences; they are bound to it until others are.

    Args:
        model: loaded, or at least built.
        rows: sequences.
        max_tokens: tokens that each may reach.
        block_size: tokens a block.

    Attributes:
        kinds: window and chunk of each cache group.
        tables: for each group, the block table [rows, blocks].
        caches: cache layer -> what it is bound to.
    """

    def __init__(self, model: NeuronModel, *, rows: int = 1, max_tokens: int, block_size: int = 16) -> None:
        self.rows, self.block_size, self.blocks = rows, block_size, -(-max_tokens // block_size)
        specs = model.get_kv_spec().layers
        self.kinds = sorted({self._kind(s) for s in specs}, key=str)
        order = torch.Generator().manual_seed(0)
        total = rows * self.blocks
        self.tables = [(torch.randperm(total, generator=order) + 1).view(rows, self.blocks) for _ in self.kinds]
        self.caches = {s.name: self._binding(s) for s in specs}
        model.bind_kv_cache(self.caches)

    @staticmethod
    def _kind(spec: LayerSpec) -> tuple[int | None, int | None]:
        return (spec.sliding_window_size, spec.chunk_size)

    def _binding(self, spec: LayerSpec) -> KVBinding:
        shape = (self.rows * self.blocks + 1, self.block_size, spec.token_width)
        return KVBinding(torch.full(shape, UNWRITTEN, dtype=spec.dtype), self.kinds.index(self._kind(spec)))

    def share(self, row: int, source: int, blocks: int) -> None:
        """Let a sequence read the first blocks of another one, as a cached prefix does."""
        for table in self.tables:
            table[row, :blocks] = table[source, :blocks]

    def step(self, spans: Sequence[Span], phase: Phase, *, pad: int = 0) -> Step:
        """What the model is given for some tokens; nothing is run.

        Args:
            spans: PREFILL: the first tokens of some sequences, packed; EXTEND: more tokens of one; DECODE: one token
                each of some.
            phase: the form.
            pad: padded tokens (DECODE: rows) behind them.

        Raises:
            ShapeError: more tokens than there is room for, or spans that the form has no place for.
        """
        for span in spans:
            if span.start + len(span.ids) > self.blocks * self.block_size:
                raise ShapeError("step", span.start + len(span.ids), f"at most {self.blocks * self.block_size} tokens")
        if phase is Phase.EXTEND and len(spans) != 1:
            raise ShapeError("step: EXTEND", len(spans), "tokens of one sequence")
        ids = [token for span in spans for token in span.ids]
        positions = torch.cat([torch.arange(s.start, s.start + len(s.ids)) for s in spans])
        owners = torch.cat([torch.full((len(s.ids),), s.row) for s in spans])
        return Step(
            phase=phase,
            token_ids_T=torch.tensor([*ids, *[0] * pad], dtype=torch.int64),
            positions_T=_padded(positions, pad, 0),
            views=tuple(self._view(i, positions, owners, pad, phase) for i in range(len(self.kinds))),
            rows=len(ids) + pad if phase is Phase.DECODE else 1,
        )

    def _view(self, index: int, positions: Tensor, owners: Tensor, pad: int, phase: Phase) -> KVView:
        table = self.tables[index]
        slots = table[owners, positions // self.block_size] * self.block_size + positions % self.block_size
        slots = _padded(slots, pad, 0)
        queries = _padded(positions, pad, 0)[:, None]
        if phase is Phase.PREFILL:
            # A padded query sees the first sequence's first token, so no row is empty; nothing sees a padded key.
            keys = _padded(positions, pad, NEVER)
            mask = self._sees(index, queries, keys[None])
            mask &= _padded(owners, pad, int(owners[0]))[:, None] == _padded(owners, pad, -1)[None]
            window = self.kinds[index][0] if pad == 0 else None
            return KVView(slots, None, mask[None], causal=True, window=window)
        mask = self._sees(index, queries, torch.arange(self.blocks * self.block_size)[None])
        if phase is Phase.EXTEND:
            return KVView(slots, table[owners[:1]], mask[None], torch.zeros(1, dtype=torch.int64))
        blocks = torch.cat((table[owners], torch.zeros(pad, self.blocks, dtype=torch.int64)))
        return KVView(slots, blocks, mask[:, None], torch.zeros(len(blocks), dtype=torch.int64))

    def _sees(self, index: int, queries: Tensor, keys: Tensor) -> Tensor:
        window, chunk = self.kinds[index]
        mask = keys <= queries
        if window is not None:
            mask &= keys > queries - window
        if chunk is not None:
            mask &= keys // chunk == queries // chunk
        return mask


def _padded(values: Tensor, pad: int, value: int) -> Tensor:
    return torch.cat((values, torch.full((pad,), value, dtype=torch.int64)))
