"""Static steps against a dense oracle: random block tables, windows, chunk borders, packs and padding."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.step import KVView, Phase
from vllm_neuron.vllm.worker.buckets import plan
from vllm_neuron.vllm.worker.inputs import Batch, StepBuilder
from vllm_neuron.vllm.worker.kv import GroupShape

HEADS, SIZE, LIMIT = 2, 8, 96


class World:
    """Requests with known keys and values, scattered over the blocks of two groups."""

    def __init__(self, lengths: list[int], groups: list[GroupShape], seed: int) -> None:
        random = np.random.default_rng(seed)
        self.groups = groups
        generator = torch.Generator().manual_seed(seed)
        self.q, self.k, self.v = ([torch.randn(n, HEADS, SIZE, generator=generator) for n in lengths] for _ in range(3))
        self.tables, self.pages = [], []
        for group in groups:
            width = LIMIT // group.block_size
            total = width * len(lengths) + 1
            ids = random.permutation(np.arange(1, total)).reshape(len(lengths), width)
            table = np.zeros((len(lengths), width), np.int32)
            for row, length in enumerate(lengths):
                used = -(-length // group.block_size)
                table[row, :used] = ids[row, :used]
                # What a request left behind earlier: a valid id of somebody else, never to be seen.
                table[row, used:] = ids[(row + 1) % len(lengths), 0]
            self.tables.append(table)
            self.pages.append(torch.full((total, group.block_size, 2 * HEADS * SIZE), 50.0))
        self.tokens = np.zeros((len(lengths), LIMIT), np.int32)
        for row, length in enumerate(lengths):
            self.tokens[row, :length] = 1000 * row + np.arange(length)

    def dense(self, row: int, first: int, count: int, group: GroupShape) -> torch.Tensor:
        total = first + count
        queries, keys = torch.arange(first, total)[:, None], torch.arange(total)[None]
        mask = keys <= queries
        if group.window is not None:
            mask &= keys > queries - group.window
        if group.chunk is not None:
            mask &= keys // group.chunk == queries // group.chunk
        q, k, v = (x[row] for x in (self.q, self.k, self.v))
        return NF.flash_attention.reference(
            q[None, first:total], k[None, :total], v[None, :total], mask[None], scale=0.4
        )[0]

    def run(self, work, batch: Batch, index: int) -> list[torch.Tensor]:
        """Do what an attention block does, on the step's tokens looked up by their ids."""
        step, view = work.step, work.step.views[index]
        ids = step.token_ids_T.tolist()
        padded = step.tokens - sum(work.counts)
        assert (view.slots_T == 0).sum() >= padded
        q, k, v = (torch.stack([x[i // 1000][i % 1000] for i in ids]) for x in (self.q, self.k, self.v))
        NF.kv_write(self.pages[index], k, v, view.slots_T)
        q = q.unflatten(0, (step.rows, -1))
        assert view.mask_BQS.any(-1).all(), "a row of a mask is empty"
        assert_promised(view, step.phase, self.groups[index])
        if step.phase is Phase.PREFILL:
            assert view.causal, "a packed prompt sees no later token, and kernels rely on it"
            out = NF.flash_attention(
                q, k[None], v[None], view.mask_BQS, scale=0.4, causal=view.causal, window=view.window
            )
        else:
            assert not view.causal
            out = NF.segmented_attention(
                q, self.pages[index], view.blocks_BM, view.mask_BQS, kv_heads=HEADS, scale=0.4, window=view.window
            )
        flat = out.flatten(0, 1)
        return [flat[start : start + count] for start, count in zip(work.starts, work.counts, strict=True)]


def assert_promised(view: KVView, phase: Phase, group: GroupShape) -> None:
    """What the runner says of causality and windows holds for every query, padded ones included."""
    mask = view.mask_BQS[0]
    if phase is Phase.PREFILL:
        assert not mask.triu(1).any()
        assert view.window == group.window
        assert view.window is None or not mask.tril(-view.window).any()
    elif view.window is not None:
        assert phase is Phase.EXTEND and view.window == group.window
        assert not mask.tril(-1).any()
        assert not mask.triu(view.window + group.block_size - 1).any()
        assert mask.shape[1] >= mask.shape[0]


kinds = st.sampled_from(
    [
        GroupShape(4, None, None),
        GroupShape(4, 1, None),
        GroupShape(4, 7, None),
        GroupShape(8, 16, None),
        GroupShape(4, None, 8),
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=5),
    groups=st.lists(kinds, min_size=1, max_size=2),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_any_schedule_computes_dense_attention(lengths, groups, seed, data) -> None:
    world = World(lengths, groups, seed)
    buckets = plan(
        NeuronConfig(), max_tokens=64, max_rows=5, max_model_len=LIMIT, block_sizes=[g.block_size for g in groups]
    )
    builder = StepBuilder(buckets, groups)
    done = np.zeros(len(lengths), np.int32)
    while (done < lengths).any():
        budget, scheduled = 64, np.zeros(len(lengths), np.int32)
        for row, length in enumerate(lengths):
            most = min(budget, length - int(done[row]))
            scheduled[row] = data.draw(st.integers(min(1, most), most)) if most else 0
            budget -= int(scheduled[row])
        rows = np.flatnonzero(scheduled)
        batch = Batch(world.tokens[rows], done[rows], scheduled[rows], [t[rows] for t in world.tables])
        works = builder.build(batch)
        assert sorted(rows[r] for work in works for r in work.rows) == rows.tolist()
        for work in works:
            for index, group in enumerate(groups):
                parts = world.run(work, batch, index)
                for local, part, count in zip(work.rows, parts, work.counts, strict=True):
                    row = int(rows[local])
                    expected = world.dense(row, int(done[row]), count, group)
                    torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-5)
        done = done + scheduled


@settings(max_examples=150, deadline=None)
@given(
    group=kinds.filter(lambda group: group.window), done=st.integers(1, LIMIT - 2), data=st.data(),
)  # fmt: skip
def test_a_window_is_declared_for_every_chunk_that_has_the_context(group, done, data) -> None:
    """The promise is a matter of the shape alone: so is what is compiled for it."""
    count = data.draw(st.integers(2, min(64, LIMIT - done)))
    buckets = plan(NeuronConfig(), max_tokens=64, max_rows=1, max_model_len=LIMIT, block_sizes=[group.block_size])
    table = np.arange(1, LIMIT // group.block_size + 1, dtype=np.int32)[None]
    batch = Batch(
        np.zeros((1, LIMIT), np.int32), np.array([done], np.int32), np.array([count], np.int32), [table]
    )  # fmt: skip
    work = StepBuilder(buckets, [group]).extend(batch, 0)
    view = work.step.views[0]
    assert_promised(view, Phase.EXTEND, group)
    wide = work.shape.context >= group.window + work.shape.size + 2 * group.block_size
    assert view.window == group.window or not wide
    assert (view.window is not None) == group.begins_with_window(work.shape.context, work.shape.size)
    assert view.blocks_BM.shape[1] == group.blocks_needed(work.shape.context, work.shape.size)
    start = int(view.start_B)
    first = done - group.window + 1
    expected = first if view.window else max(0, first)
    assert start == expected // group.block_size * group.block_size
    own = np.arange(view.blocks_BM.shape[1]) + start // group.block_size
    assert (view.blocks_BM[0].numpy()[own < 0] == 0).all()
    assert view.mask_BQS[0, :count].sum(-1).tolist() == [min(done + i + 1, group.window) for i in range(count)]


def test_chunked_layers_promise_no_window() -> None:
    assert not GroupShape(4, None, 8).begins_with_window(96, 16)
    assert not GroupShape(4, None, None).begins_with_window(96, 16)
    assert not GroupShape(4, 16, None).begins_with_window(16, 16)
    assert GroupShape(4, 16, None).begins_with_window(96, 16)


def test_a_windowed_decode_reads_few_blocks() -> None:
    """Window 16 in blocks of 4: five blocks hold it, wherever it starts."""
    group = GroupShape(4, 16, None)
    assert group.blocks_needed(96, 1) == 5
    assert GroupShape(4, None, None).blocks_needed(96, 1) == 24
    assert group.blocks_needed(8, 1) == 2
