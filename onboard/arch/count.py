"""Numbers that follow from an :class:`ArchSpec` alone, exactly: parameters, cache and state bytes, FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from onboard.arch.spec import ArchSpec


@dataclass(frozen=True)
class Params:
    """Parameters of the language model: all, used for one token, in embedding tables (tied head counted once)."""

    total: int
    active: int
    embedding: int


def params(arch: ArchSpec) -> Params:
    """Exact parameter counts of the language model. ``active`` counts top-k experts instead of all, and table
    look-ups as nothing: token and per-layer embedding rows are not multiplied (a tied table counts as the head)."""
    raise NotImplementedError


def params_towers(arch: ArchSpec) -> int | None:
    """Parameters of all towers; 0 without towers; None as soon as one is unknown."""
    raise NotImplementedError


def kv_bytes_per_token(arch: ArchSpec, dtype: str = "bfloat16") -> int:
    """Bytes that one more token adds to the cache of one sequence while every window is still filling."""
    raise NotImplementedError


def kv_bytes_by_kind(arch: ArchSpec, dtype: str = "bfloat16") -> dict[str, int]:
    """Bytes of one token in all layers of each mixer kind: ``{"full": ..., "sliding": ...}``. Layers that share
    another layer's cache add nothing."""
    raise NotImplementedError


def layer_tokens(arch: ArchSpec, length: int) -> int:
    """Cache entries that one sequence of ``length`` tokens holds, over all layers; windows and chunks cap theirs."""
    raise NotImplementedError


def state_bytes(arch: ArchSpec, dtype: str = "bfloat16") -> int:
    """Bytes of recurrent and convolution state of one sequence, whatever its length (recurrent states in float32)."""
    raise NotImplementedError


def flops_per_token(arch: ArchSpec, context: int = 0) -> int:
    """Forward FLOPs of one token that sees ``context`` earlier tokens: 2 for each multiplied weight, and the attention
    products."""
    raise NotImplementedError
