"""The tensor-parallel group of this process (or thread): set once by the worker, read by blocks as they are built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from vllm_neuron.errors import ConfigError
from vllm_neuron.parallel.group import Group, SingleGroup

_TP: ContextVar[Group | None] = ContextVar("vllm_neuron_tp_group", default=None)
_SINGLE = SingleGroup()


def get_tp_group() -> Group:
    """The current tensor-parallel group; one rank when none was set."""
    return _TP.get() or _SINGLE


def set_tp_group(group: Group | None) -> None:
    """Make ``group`` the current one from here on (the worker does this once, after the process groups exist)."""
    _TP.set(group)


@contextmanager
def use_tp_group(group: Group) -> Iterator[Group]:
    """Make ``group`` the current one inside a ``with`` block."""
    token = _TP.set(group)
    try:
        yield group
    finally:
        _TP.reset(token)


def valid_tp_sizes(heads: int, kv_heads: int, limit: int = 64) -> list[int]:
    """The tensor-parallel sizes that divide the query heads and shard or replicate the KV heads evenly."""
    return [
        size
        for size in range(1, min(heads, limit) + 1)
        if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    ]


def kv_heads_per_rank(heads: int, kv_heads: int, world_size: int) -> int:
    """KV heads that each rank holds: ``kv_heads / world_size``, or 1 when ranks share a replicated head.

    Raises:
        ConfigError: the ranks divide neither evenly; the message lists the sizes that work.
    """
    sizes = valid_tp_sizes(heads, kv_heads)
    if world_size not in sizes:
        raise ConfigError(
            "tensor_parallel_size",
            world_size,
            f"a size that shards {heads} query heads and {kv_heads} KV heads evenly: "
            + ", ".join(str(size) for size in sizes),
            "Pass one of these sizes.",
        )
    return max(1, kv_heads // world_size)
