"""What a model asks of the KV cache, layer by layer, and what it gets bound.

A page (one block of one layer) is one contiguous run of bytes laid out as ``[block_size, K * D_key + K * D_value]`` in
the layer's dtype: a token's key and value lie side by side, so one gather fetches both, and layers of different shape
can share a buffer by the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from vllm_neuron.errors import ConfigError

Kind = Literal["full", "sliding", "chunked", "latent", "state"]


@dataclass(frozen=True)
class LayerSpec:
    """The cache of one layer on one rank.

    Attributes:
        name: unique, with the layer's index, e.g. ``layers.3.self_attn``.
        num_kv_heads: K of this rank.
        head_size: D of the keys.
        dtype: dtype of the cached values.
        sliding_window_size: tokens a query sees, itself included; ``None`` when the layer is not windowed.
        chunk_size: chunk of chunked attention; ``None`` when not chunked.
        head_size_v: D of the values, when unlike the keys'.
        latent: the layer keeps one compressed vector for a token (MLA) in place of keys and values.
        state_shapes: shapes of a recurrent state a sequence, for layers that keep a state and no keys.
    """

    name: str
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    sliding_window_size: int | None = None
    chunk_size: int | None = None
    head_size_v: int | None = None
    latent: bool = False
    state_shapes: tuple[tuple[int, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("sliding_window_size", "chunk_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"LayerSpec({self.name}).{name}", value, "a positive number of tokens, or None")
        if self.sliding_window_size and self.chunk_size:
            raise ConfigError(
                f"LayerSpec({self.name})", (self.sliding_window_size, self.chunk_size), "a window or a chunk, not both"
            )

    @property
    def kind(self) -> Kind:
        """The tag of the union: which other fields count."""
        if self.state_shapes:
            return "state"
        if self.latent:
            return "latent"
        if self.sliding_window_size:
            return "sliding"
        return "chunked" if self.chunk_size else "full"

    @property
    def value_size(self) -> int:
        """D of the values (0 for a latent cache)."""
        return 0 if self.latent else (self.head_size if self.head_size_v is None else self.head_size_v)

    @property
    def token_width(self) -> int:
        """Elements cached for one token."""
        return self.num_kv_heads * (self.head_size + self.value_size)

    @property
    def bytes_per_token(self) -> int:
        """Bytes cached for one token of a request."""
        return self.token_width * self.dtype.itemsize


@dataclass(frozen=True)
class KVSpec:
    """All cache layers of a model on one rank, in layer order."""

    layers: tuple[LayerSpec, ...]

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError("KVSpec.layers", sorted(twice), "each layer name once")


@dataclass(frozen=True)
class KVBinding:
    """The cache of one layer as the runner hands it over.

    Attributes:
        pages: [num_blocks, block_size, token_width], possibly strided over blocks; block 0 is the null block.
        group: index of the layer's view in ``Step.views``.
    """

    pages: Tensor
    group: int


def blocks_needed(context: int, queries: int, *, block_size: int, window: int | None, chunk: int | None) -> int:
    """M, blocks of a row's table that a step reads.

    Args:
        context: S in tokens, a multiple of the block size.
        queries: Q, tokens of a row.
        block_size: tokens a block.
        window, chunk: what a query of the layer can reach; None for all.
    """
    whole = context // block_size
    reach = window if chunk is None else chunk
    if reach is None:
        return whole
    return min(whole, -(-(reach - 1 + queries) // block_size) + 1)


def begins_with_window(context: int, queries: int, *, block_size: int, window: int | None, chunk: int | None) -> bool:
    """Whether the table of an EXTEND begins in the block where its first query's window does.

    It has room for that wherever the query is, unless the context is too short: then it begins with the sequence.

    Args:
        context, queries, block_size, window, chunk: as in :func:`blocks_needed`.
    """
    if window is None or chunk is not None:
        return False
    blocks = blocks_needed(context, queries, block_size=block_size, window=window, chunk=None)
    return blocks * block_size >= window + queries + block_size - 2
