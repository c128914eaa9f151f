"""Static steps against a dense oracle: random block tables, windows, chunk borders, packs and padding."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.step import Phase
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
        if step.phase is Phase.PREFILL:
            assert view.causal, "a packed prompt sees no later token, and kernels rely on it"
            out = NF.flash_attention(q, k[None], v[None], view.mask_BQS, scale=0.4, causal=True)
        else:
            out = NF.segmented_attention(q, self.pages[index], view.blocks_BM, view.mask_BQS, kv_heads=HEADS, scale=0.4)
        flat = out.flatten(0, 1)
        return [flat[start : start + count] for start, count in zip(work.starts, work.counts, strict=True)]


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


def test_a_windowed_decode_reads_few_blocks() -> None:
    """Window 16 in blocks of 4: five blocks hold it, wherever it starts."""
    group = GroupShape(4, 16, None)
    assert group.blocks_needed(96, 1) == 5
    assert GroupShape(4, None, None).blocks_needed(96, 1) == 24
    assert group.blocks_needed(8, 1) == 2
