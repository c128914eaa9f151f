"""The group that a block sees, in three kinds: one rank, real processes, and threads for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

R = TypeVar("R")


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


class _Meeting:
    """Where the threads of one ThreadGroup exchange tensors."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size)
        self.box: list[Tensor | None] = [None] * world_size

    def exchange(self, rank: int, x: Tensor) -> list[Tensor]:
        self.box[rank] = x.detach().clone()
        self.barrier.wait()
        parts = [part for part in self.box if part is not None]
        self.barrier.wait()
        return parts


class ThreadGroup:
    """One rank of N that run as threads of this process, so that a test checks TP=4 without processes."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.world_size = meeting.barrier.parties
        self._meeting = meeting

    def all_reduce(self, x: Tensor) -> Tensor:
        """See :class:`Group`."""
        total = torch.zeros_like(x)
        for part in self._meeting.exchange(self.rank, x):
            total = total + part
        return total

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        return torch.cat(self._meeting.exchange(self.rank, x), dim=dim)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`Group`."""
        return self.all_reduce(x).chunk(self.world_size, dim=dim)[self.rank]

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
        """See :class:`Group`."""
        parts = self._meeting.exchange(self.rank, x)
        return torch.cat([p.chunk(self.world_size, dim=split_dim)[self.rank] for p in parts], dim=concat_dim)

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        """See :class:`Group`."""
        return self._meeting.exchange(self.rank, x)[src].clone()


def run_in_threads(world_size: int, work: Callable[[Group], R]) -> list[R]:
    """Run ``work(group)`` on ``world_size`` ranks in threads and return what each rank returned, in rank order.

    Args:
        world_size: number of ranks, 1 or more.
        work: called once a rank with that rank's group, which is also the current TP group in that thread.

    Raises:
        BaseException: the first exception of any rank; the other ranks are released from their collectives.
    """
    from vllm_neuron.parallel.neuron_parallel_state import use_tp_group

    meeting = _Meeting(world_size)

    def run(rank: int) -> R:
        group: Group = ThreadGroup(rank, meeting) if world_size > 1 else SingleGroup()
        with use_tp_group(group), torch.no_grad():
            return work(group)

    def release_others(future: Future[R]) -> None:
        if future.exception() is not None:
            meeting.barrier.abort()

    with ThreadPoolExecutor(max_workers=world_size) as pool:
        futures = [pool.submit(run, rank) for rank in range(world_size)]
        for future in futures:
            future.add_done_callback(release_others)
    errors = [error for future in futures if (error := future.exception()) is not None]
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)] or errors
    if causes:
        raise causes[0]
    return [future.result() for future in futures]
