"""The group that a block sees: its protocol, and the kinds for one rank and for real processes."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Group(Protocol):
    """Ranks that hold shards of one thing. Every call is collective: all ranks make it in the same order."""

    @property
    def rank(self) -> int:
        """This rank's index in the group, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over ranks; same shape, same on all ranks. May reuse ``x``."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """The ranks' tensors joined along ``dim`` in rank order."""
        ...

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's equal slice along ``dim`` of the sum over ranks."""
        ...

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
        """Slice ``x`` along ``split_dim``, send slice r to rank r, join what comes along ``concat_dim``."""
        ...

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """Rank ``src``'s tensor on all ranks; every rank passes one of the same shape and dtype."""
        ...


class SingleGroup:
    """A group of one rank: every collective is the identity."""

    rank = 0
    world_size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """See :class:`Group`."""
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        return x

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        return x

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
        """See :class:`Group`."""
        return x

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """See :class:`Group`."""
        return x


class TorchGroup:
    """Ranks in processes of their own, over a ``torch.distributed`` process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.process_group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)

    def all_reduce(self, x: Tensor) -> Tensor:
        """See :class:`Group`."""
        x = x.contiguous()
        dist.all_reduce(x, group=self.process_group)
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.world_size)]
        dist.all_gather(parts, x.contiguous(), group=self.process_group)
        return torch.cat(parts, dim=dim)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        # gloo has no reduce_scatter of tensors in every build; the sum and a slice are the same numbers.
        return self.all_reduce(x).chunk(self.world_size, dim=dim)[self.rank].contiguous()

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
        """See :class:`Group`."""
        # gloo has no all_to_all of lists: gather everything and keep this rank's slices.
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.world_size)]
        dist.all_gather(parts, x.contiguous(), group=self.process_group)
        mine = [part.chunk(self.world_size, dim=split_dim)[self.rank] for part in parts]
        return torch.cat(mine, dim=concat_dim)

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """See :class:`Group`."""
        dist.broadcast(x, src=dist.get_global_rank(self.process_group, src), group=self.process_group)
        return x
