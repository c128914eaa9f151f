"""The sizes that work is padded to, and how a step's prefills are packed into them. Pure functions, no vLLM."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.step import Phase

SMALLEST_TOKENS = 16
# A pack is split in two when its bucket would have more padding than this share, and than these tokens: a step more
# reads all weights once more, which costs about as much as computing that many tokens.
TOLERATED_SHARE = 0.25
TOLERATED_TOKENS = 64
# Several requests share a pack up to this many tokens: beyond, the [T, T] scores between strangers cost more than a
# further step.
PACKED_TOKENS = 256


class Shape(NamedTuple):
    """One static shape of a step.

    Attributes:
        phase: the form.
        size: T, or B of a decode.
        context: S; T in a prefill.
    """

    phase: Phase
    size: int
    context: int


@dataclass(frozen=True)
class Buckets:
    """All static sizes of a run; each tuple ascends.

    Attributes:
        tokens: T of PREFILL and EXTEND; the last is ``max_num_batched_tokens``.
        rows: B of DECODE, and rows of the head; the last is ``max_num_seqs``.
        context: S in tokens, multiples of every group's block size; the last covers ``max_model_len``.
    """

    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    context: tuple[int, ...]

    def shapes(self) -> list[Shape]:
        """Every shape that a step can have, the smaller ones of a phase first.

        An EXTEND has two new tokens or more (one would be a DECODE) after a cached one, and more than the next smaller
        bucket holds; contexts that are too short for that don't occur.
        """
        found = [Shape(Phase.PREFILL, tokens, tokens) for tokens in self.tokens]
        below = 0
        for tokens in self.tokens:
            fewest = max(below + 1, 2) + 1
            found += [Shape(Phase.EXTEND, tokens, context) for context in self.context if context >= fewest]
            below = tokens
        return found + [Shape(Phase.DECODE, rows, context) for rows in self.rows for context in self.context]

    @staticmethod
    def smallest(sizes: Sequence[int], needed: int, what: str) -> int:
        """The smallest bucket that holds ``needed``.

        Raises:
            ShapeError: none does.
        """
        place = bisect_left(sizes, needed)
        if place == len(sizes):
            raise ShapeError(what, needed, f"at most {sizes[-1]}, the largest bucket")
        return sizes[place]

    def token_bucket(self, tokens: int) -> int:
        """T for so many tokens."""
        return self.smallest(self.tokens, tokens, "tokens of a prefill")

    def row_bucket(self, rows: int) -> int:
        """B for so many rows."""
        return self.smallest(self.rows, rows, "rows of a decode")

    def context_bucket(self, length: int) -> int:
        """S for so many cached and new tokens."""
        return self.smallest(self.context, length, "context length")

    def pack(self, lengths: Sequence[int]) -> list[list[int]]:
        """Deal prefills out to packs, each for one PREFILL step, with little padding.

        Args:
            lengths: tokens of each prefill, in order; none is longer than the last bucket.

        Returns:
            Packs of indices into ``lengths``; order is kept.
        """
        packs: list[list[int]] = []
        start = 0
        while start < len(lengths):
            rest = sum(lengths[start:])
            limit = self._pack_limit(rest, lengths[start])
            pack, used = [start], lengths[start]
            while start + len(pack) < len(lengths) and used + lengths[start + len(pack)] <= limit:
                used += lengths[start + len(pack)]
                pack.append(start + len(pack))
            packs.append(pack)
            start += len(pack)
        return packs

    def _pack_limit(self, rest: int, first: int) -> int:
        most = max(min(PACKED_TOKENS, self.tokens[-1]), self.token_bucket(first))
        if rest > most:
            return most
        whole = self.token_bucket(rest)
        if whole - rest <= max(TOLERATED_SHARE * whole, TOLERATED_TOKENS):
            return whole
        below = [size for size in self.tokens if size < whole and size >= first]
        return below[-1] if below else whole


def plan(
    config: NeuronConfig, *, max_tokens: int, max_rows: int, max_model_len: int, block_sizes: Sequence[int]
) -> Buckets:
    """The buckets of a run: the user's, checked, or powers of two.

    Args:
        config: with the user's lists.
        max_tokens, max_rows, max_model_len: vLLM's limits.
        block_sizes: of the KV groups.

    Raises:
        ConfigError: a list that does not end at its limit, or contexts that are no multiples of the block size.
    """
    block = max(block_sizes, default=1)
    if any(block % size for size in block_sizes):
        raise ConfigError("block sizes of the KV groups", list(block_sizes), f"divisors of {block}")
    longest = -(-max_model_len // block) * block
    tokens = config.num_batched_tokens_buckets or _powers(min(SMALLEST_TOKENS, max_tokens), max_tokens)
    rows = config.num_seqs_buckets or _powers(1, max_rows)
    context = config.decode_context_length_buckets or _powers(block, longest)
    _ends_at("num_batched_tokens_buckets", tokens, max_tokens, "max_num_batched_tokens")
    _ends_at("num_seqs_buckets", rows, max_rows, "max_num_seqs")
    _ends_at("decode_context_length_buckets", context, longest, "max_model_len, rounded up to a block")
    odd = [size for size in context if size % block]
    if odd:
        raise ConfigError("neuron_config.decode_context_length_buckets", odd, f"multiples of the block size {block}")
    return Buckets(tuple(tokens), tuple(rows), tuple(context))


def _powers(first: int, limit: int) -> tuple[int, ...]:
    sizes = []
    size = first
    while size < limit:
        sizes.append(size)
        size *= 2
    return (*sizes, limit)


def _ends_at(name: str, sizes: Sequence[int], limit: int, what: str) -> None:
    if sizes[-1] != limit:
        raise ConfigError(
            f"neuron_config.{name}", list(sizes), f"a last bucket of {limit} ({what})", "Add it, or change the limit."
        )
