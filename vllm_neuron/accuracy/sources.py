"""Where logits come from: one small protocol for references, packages, engines and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, eq=False)
class LayerKV:
    """The cached keys and values of one sequence in one layer, whole heads, as attention reads them.

    Attributes:
        layer: index of the layer.
        keys_SKD: [S, K, D]; positions already applied.
        values_SKD: [S, K, D of the values].
        start: position of the first row; more than 0 when a window dropped what came before.
        name: of the cache layer.
    """

    layer: int
    keys_SKD: Tensor
    values_SKD: Tensor
    start: int = 0
    name: str = ""


@dataclass(frozen=True, eq=False)
class Scored:
    """What a source gave for one prompt.

    Attributes:
        logits_TV: [T, V] raw logits, row t for the token after position ``first + t``; float32, or the narrower dtype
            that the source computes in. It may be memory-mapped and large: read it in chunks of rows. None when the
            source shows only its highest log-probabilities.
        seen_ids: the ids that were really run.
        kv: the cache after the last token; None when the source can't show it.
        top: for sources without logits: at each position token id -> log-probability of the highest ones.
        first: position of the first row.
        partial: the source ended before the last position; rows and ``top`` stop there.
        notes: what a reader of the result should know.
    """

    logits_TV: Tensor | None
    seen_ids: tuple[int, ...]
    kv: tuple[LayerKV, ...] | None = None
    top: tuple[Mapping[int, float], ...] | None = None
    first: int = 0
    partial: bool = False
    notes: tuple[str, ...] = ()


@runtime_checkable
class LogitsSource(Protocol):
    """Something that gives logits for given tokens.

    Attributes:
        name: in words, for reports.
        vocab_size: V that it answers for, padding included if it can't be told apart.
        dtype: name of the dtype it computes in, ``float32`` or ``bfloat16``.
        tokenizer_id: hash of the tokenizer (``accuracy.inputs.tokenizer_id``); None when unknown.
    """

    @property
    def name(self) -> str:
        """In words, for reports."""
        ...

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def dtype(self) -> str:
        """``float32``, ``bfloat16``, ..."""
        ...

    @property
    def tokenizer_id(self) -> str | None:
        """Hash of the tokenizer, None when unknown."""
        ...

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """Teacher-forced logits at every position.

        Args:
            prompt_ids: the whole text, gold continuation included.
            steps: the last so many ids are decoded one by one; those before are prefilled. 0 to ``len - 1``.
        """
        ...
