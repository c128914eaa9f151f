"""Ranks as threads of this process: the third kind of group, for tests and proofs without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from vllm_neuron.parallel.group import Group, SingleGroup
from vllm_neuron.parallel.neuron_parallel_state import use_tp_group

R = TypeVar("R")


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
