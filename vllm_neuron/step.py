"""What one forward step needs: made once by the runner, passed down, never changed.

Legend for names and shapes in the whole project: T tokens of a step, B sequences (rows), Q tokens a row, M blocks a
row, S context slots a row, H hidden size, N query heads of a rank, K key-value heads of a rank, D head size, V
vocabulary, E experts, I intermediate size.

A step is one of three static forms. The runner pads every tensor to a bucket, so each form has a fixed list of shapes:

========  ==========================================  ==================================  =======================
phase     rows                                        keys and values come from           mask of a view
========  ==========================================  ==================================  =======================
PREFILL   several requests packed in T tokens (B=1)   this step's own tokens              [1, T, T]
EXTEND    one request, T tokens after cached ones     the cache, written first            [1, T, S]
DECODE    B requests, one token each (T=B)            the cache, written first            [B, 1, S]
========  ==========================================  ==================================  =======================

Padded tokens have position 0, write to the null block (block 0) and see at least one key, so no row of a mask is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class Phase(Enum):
    """Which of the three static forms a step has."""

    PREFILL = "prefill"
    EXTEND = "extend"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class KVView:
    """One KV cache group in one step; all layers of the group share it.

    Attributes:
        slots_T: int64 [T], where each token's key and value are written: ``block * block_size + offset``.
        blocks_BM: int64 [B, M], the block table of the context that is read; ``None`` in PREFILL. A windowed group
            holds only the blocks that its window can reach, so M may differ between groups.
        mask_BQS: bool [B, Q, S], True where query q may see key s. Causality, window, chunk, padding and, in PREFILL,
            the border between packed requests are all in here. S is ``M * block_size``, or T in PREFILL.
        start_B: int64 [B], position of the first key in ``blocks_BM`` (0 unless the table was cut by a window, and
            below 0 where it holds a whole window before the sequence's own tokens); ``None`` in PREFILL.
        causal: PREFILL only: no token sees a later token of the step, so that kernels need not look at those.
        window: how far back queries see, where kernels may rely on it: in PREFILL no token sees a key so many places
            before itself or earlier; in EXTEND the window of the first token begins in the first block of
            ``blocks_BM``, so that token i sees keys i to ``i + window + block_size - 2`` at most. Padding included.
            ``None`` promises nothing.
    """

    slots_T: Tensor
    blocks_BM: Tensor | None
    mask_BQS: Tensor
    start_B: Tensor | None = None
    causal: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Everything a model's ``forward`` reads besides its weights and caches.

    Attributes:
        phase: the static form, see the module's table.
        token_ids_T: int64 [T].
        positions_T: int64 [T], position of each token in its own request.
        views: one view for each KV cache group, in the order of the groups.
        rows: B; ``T // rows`` is Q.
    """

    phase: Phase
    token_ids_T: Tensor
    positions_T: Tensor
    views: tuple[KVView, ...]
    rows: int

    @property
    def tokens(self) -> int:
        """T, padding included."""
        return self.token_ids_T.shape[0]
