"""Masks as the runner makes them, and paged caches, for the attention kernels' tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
CORES = st.sampled_from([1, 2])
HEADS = st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (6, 3), (12, 2), (14, 2), (8, 1), (16, 1), (5, 5)])
SIZES = st.sampled_from([(16, 16), (32, 32), (64, 64), (64, 64), (80, 80), (96, 64), (128, 128), (256, 256), (40, 200)])


def prefill_mask(length: int, *, packed: int = 1, window: int | None = None, chunk: int | None = None) -> Tensor:
    """bool [1, T, T]: ``packed`` prompts of about one length side by side, a tenth of the tokens padding at the end."""
    used = max(1, length - length // 10)
    owner = torch.arange(length) * packed // used
    owner[used:] = -1
    starts = torch.tensor([int((owner == o).nonzero()[0]) for o in owner])
    positions = torch.arange(length) - starts
    positions[used:] = 0
    return sees(positions, positions, window, chunk)[None] & (owner[:, None] == owner[None])


def sees(queries: Tensor, keys: Tensor, window: int | None, chunk: int | None) -> Tensor:
    """bool [Q, S]: causal, narrowed by a window or a chunk."""
    mask = keys[None] <= queries[:, None]
    if window is not None:
        mask &= keys[None] > queries[:, None] - window
    if chunk is not None:
        mask &= keys[None] // chunk == queries[:, None] // chunk
    return mask


@dataclass(frozen=True)
class Paged:
    """A cache of random blocks in random order, and which slots each query sees."""

    pages: Tensor
    blocks_BM: Tensor
    mask_BQS: Tensor


def paged(
    normal, rows: int, blocks: int, block: int, width: int, queries: int, dtype: torch.dtype, *,
    window: int | None = None, chunk: int | None = None,
) -> Paged:  # fmt: skip
    """Rows of random length; the last ``queries`` tokens of each are its queries."""
    total = rows * blocks + 1
    generator = torch.Generator().manual_seed(total)
    table = 1 + torch.randperm(total - 1, generator=generator)[: rows * blocks].view(rows, blocks)
    keys = torch.arange(blocks * block)
    masks = []
    for row in range(rows):
        least = min(queries, blocks * block)
        length = int(torch.randint(least, blocks * block + 1, (1,), generator=generator)) if row else blocks * block
        table[row, -(-length // block) :] = 0
        masks.append(sees(torch.arange(length - queries, length).clamp(min=0), keys, window, chunk))
    return Paged(normal(5, total, block, width, dtype=dtype), table, torch.stack(masks))


def windowed(normal, queries: int, block: int, width: int, window: int, done: int, dtype: torch.dtype) -> Paged:
    """One row's chunk after ``done`` tokens; the table begins where the first query's window does, as the runner cuts
    it: before the sequence that is the null block.
    """
    first = (done - window + 1) // block
    ids = first + torch.arange(-(-(window - 1 + queries) // block) + 1)
    table = torch.where((ids >= 0) & (ids * block < done + queries), 1 + ids.flip(0) - first, 0)
    keys = first * block + torch.arange(len(ids) * block)
    mask = sees(done + torch.arange(queries), keys, window, None) & (keys >= 0)
    return Paged(normal(5, len(ids) + 1, block, width, dtype=dtype), table[None], mask[None])
