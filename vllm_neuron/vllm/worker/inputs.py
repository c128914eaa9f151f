"""From the persistent batch to static steps: which rows run in which form, padded to which bucket.

Everything is numpy; tensors are made of it at the end, without a copy. Masks are made once a step for each kind of KV
group: groups of one kind differ in their blocks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vllm_neuron.step import KVView, Phase, Step
from vllm_neuron.vllm.worker.buckets import Buckets, Shape
from vllm_neuron.vllm.worker.kv import GroupShape

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """The rows of a scheduler step, as the persistent batch has them.

    Attributes:
        token_ids: int32 [rows, max_model_len].
        computed: tokens of each row that are in the cache already.
        scheduled: tokens of each row to compute now.
        tables: one block table for each KV group, int32 [rows, blocks].
    """

    token_ids: NDArray[np.int32]
    computed: NDArray[np.int32]
    scheduled: NDArray[np.int32]
    tables: Sequence[NDArray[np.int32]]


@dataclass(frozen=True)
class Work:
    """One step, and which of its tokens belong to which row.

    Attributes:
        step: the padded step.
        rows: batch rows in it.
        starts: index in the step of each row's first token; the row's tokens follow it.
        counts: tokens of each row.
        shape: by which strict mode knows it.
    """

    step: Step
    rows: tuple[int, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    shape: Shape

    def last_tokens(self) -> list[int]:
        """Index in the step of each row's last token."""
        return [start + count - 1 for start, count in zip(self.starts, self.counts, strict=True)]


class StepBuilder:
    """Makes the steps of a batch.

    Args:
        buckets: static sizes.
        groups: shapes of the KV groups, in vLLM's order.
    """

    def __init__(self, buckets: Buckets, groups: Sequence[GroupShape]) -> None:
        self.buckets, self.groups = buckets, tuple(groups)

    def build(self, batch: Batch) -> list[Work]:
        """Prefills packed, then each chunk that has cached tokens, then all decodes in one step."""
        fresh = batch.computed == 0
        decode = ~fresh & (batch.scheduled == 1)
        prefills = np.flatnonzero(fresh).tolist()
        packs = self.buckets.pack([int(batch.scheduled[row]) for row in prefills])
        work = [self.prefill(batch, [prefills[i] for i in pack]) for pack in packs]
        work += [self.extend(batch, row) for row in np.flatnonzero(~fresh & ~decode).tolist()]
        rows = np.flatnonzero(decode)
        return [*work, self.decode(batch, rows)] if rows.size else work

    def prefill(self, batch: Batch, rows: list[int]) -> Work:
        """Rows that start from nothing, side by side; each sees only itself."""
        counts = [int(batch.scheduled[row]) for row in rows]
        used, size = sum(counts), self.buckets.token_bucket(sum(counts))
        ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
        owner = np.full(size, -1, np.int64)
        starts = np.cumsum([0, *counts[:-1]]).tolist()
        for row, start, count in zip(rows, starts, counts, strict=True):
            ids[start : start + count] = batch.token_ids[row, :count]
            positions[start : start + count] = np.arange(count)
            owner[start : start + count] = row
        base = (owner[:, None] == owner[None, :]) & (positions[None, :] <= positions[:, None])
        # A padded token sees itself alone, as near as a window asks for.
        base[used:] = False
        np.fill_diagonal(base, True)
        masks: dict[GroupShape, torch.Tensor] = {}
        views = []
        for group, table in zip(self.groups, batch.tables, strict=True):
            slots = np.zeros(size, np.int64)
            slots[:used] = _slots(table, owner[:used], positions[:used], group.block_size)
            if group not in masks:
                mask = _reach(base, positions[None, :], positions[:, None], group)
                masks[group] = torch.from_numpy(mask)[None]
            views.append(KVView(_tensor(slots), None, masks[group], causal=True, window=group.window))
        step = Step(Phase.PREFILL, _tensor(ids), _tensor(positions), tuple(views), 1)
        return Work(step, tuple(rows), tuple(starts), tuple(counts), Shape(Phase.PREFILL, size, size))

    def extend(self, batch: Batch, row: int) -> Work:
        """One row's tokens after cached ones."""
        done, count = int(batch.computed[row]), int(batch.scheduled[row])
        size, context = self.buckets.token_bucket(count), self.buckets.context_bucket(done + count)
        ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
        ids[:count] = batch.token_ids[row, done : done + count]
        positions[:count] = np.arange(done, done + count)
        one = np.array([row])
        masks: dict[GroupShape, tuple[torch.Tensor, torch.Tensor]] = {}
        views = []
        for group, table in zip(self.groups, batch.tables, strict=True):
            slots = np.zeros(size, np.int64)
            slots[:count] = _slots(table, np.full(count, row), positions[:count], group.block_size)
            whole = group.begins_with_window(context, size)
            first = _first_block(positions[:1], group, before=whole)
            last = positions[count - 1 : count] // group.block_size
            blocks = _blocks(table, one, first, last, group.blocks_needed(context, size))
            if group not in masks:
                mask, start = _paged_mask(positions, first, blocks.shape[1], group)
                # What a padded token sees: the first key, or where the table moves with the window, one within it.
                mask[count:] = False
                padded = np.arange(count, size)
                mask[padded, padded if whole else 0] = True
                masks[group] = torch.from_numpy(mask)[None], _tensor(start)
            window = group.window if whole else None
            views.append(KVView(_tensor(slots), _tensor(blocks), *masks[group], window=window))
        step = Step(Phase.EXTEND, _tensor(ids), _tensor(positions), tuple(views), 1)
        return Work(step, (row,), (0,), (count,), Shape(Phase.EXTEND, size, context))

    def decode(self, batch: Batch, rows: Ints) -> Work:
        """One token of each row."""
        count = rows.size
        size = self.buckets.row_bucket(count)
        done = batch.computed[rows].astype(np.int64)
        context = self.buckets.context_bucket(int(done.max()) + 1)
        ids, positions = np.zeros(size, np.int64), np.zeros(size, np.int64)
        ids[:count] = batch.token_ids[rows, done]
        positions[:count] = done
        masks: dict[GroupShape, tuple[torch.Tensor, torch.Tensor]] = {}
        views = []
        for group, table in zip(self.groups, batch.tables, strict=True):
            slots = np.zeros(size, np.int64)
            slots[:count] = _slots(table, rows, done, group.block_size)
            first = _first_block(positions, group)
            width = group.blocks_needed(context, 1)
            blocks = np.zeros((size, width), np.int64)
            blocks[:count] = _blocks(table, rows, first[:count], done // group.block_size, width)
            if group not in masks:
                mask, start = _paged_mask(positions, first, width, group)
                masks[group] = torch.from_numpy(mask)[:, None], _tensor(start)
            views.append(KVView(_tensor(slots), _tensor(blocks), *masks[group]))
        step = Step(Phase.DECODE, _tensor(ids), _tensor(positions), tuple(views), size)
        every = tuple(range(count))
        return Work(step, tuple(rows.tolist()), every, (1,) * count, Shape(Phase.DECODE, size, context))


def _tensor(array: Ints) -> torch.Tensor:
    return torch.from_numpy(array)


def _slots(table: NDArray[np.int32], rows: Ints, positions: Ints, block_size: int) -> Ints:
    return table[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size


def _first_block(queries: Ints, group: GroupShape, *, before: bool = False) -> Ints:
    """Index in its table of the first block that a row's first query can reach, [B]; below 0 with ``before``, where a
    window begins before the sequence.
    """
    if group.window is not None:
        first = (queries - group.window + 1) // group.block_size
        return first if before else np.maximum(first, 0)
    if group.chunk is not None:
        return queries // group.chunk * group.chunk // group.block_size
    return np.zeros(queries.size, np.int64)


def _blocks(table: NDArray[np.int32], rows: Ints, first: Ints, last: Ints, width: int) -> Ints:
    """``width`` blocks of each row from ``first`` on, [B, M]; the null block before a row's own first
    one and past its last, ``last``.

    A mask shows none of those, but the table has entries of earlier requests there, and a NaN of a broken neighbour
    gets past a mask: 0 * NaN is NaN.
    """
    index = np.minimum(first[:, None] + np.arange(width), table.shape[1] - 1)
    own = (index >= 0) & (index <= last[:, None])
    return np.where(own, table[rows[:, None], index], 0).astype(np.int64)


def _paged_mask(positions: Ints, first: Ints, width: int, group: GroupShape) -> tuple[Bools, Ints]:
    """The mask of positions [n] over ``width`` blocks from ``first`` on, and the first key's position.

    ``first`` is [n] for rows with a table each, or [1] for queries that share one.
    """
    start = first * group.block_size
    keys = start[:, None] + np.arange(width * group.block_size)
    return _reach((keys >= 0) & (keys <= positions[:, None]), keys, positions[:, None], group), start


def _reach(causal: Bools, keys: Ints, queries: Ints, group: GroupShape) -> Bools:
    """The causal mask, narrowed by the group's window or chunk."""
    if group.window is not None:
        return causal & (keys > queries - group.window)
    if group.chunk is not None:
        return causal & (keys // group.chunk == queries // group.chunk)
    return causal
