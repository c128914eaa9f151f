"""The group protocol: threads of one process and real processes give the same, and errors do not hang."""

from __future__ import annotations

import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.parallel import Group, SingleGroup, TorchGroup, get_tp_group, run_in_threads
from vllm_neuron.parallel.all2all import all_to_all
from vllm_neuron.parallel.neuron_parallel_state import kv_heads_per_rank, valid_tp_sizes


def every_collective(group: Group) -> list[torch.Tensor]:
    x = torch.arange(12.0).view(4, 3) + 100 * group.rank
    return [
        group.all_reduce(x.clone()),
        group.all_gather(x, 0),
        group.all_gather(x, -1),
        group.reduce_scatter(x.clone(), 0),
        group.all_to_all(x, 0, 1),
        group.broadcast(x.clone(), 1),
    ]


def in_process(rank: int, path: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{path}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    assert dist.group.WORLD is not None
    torch.save(every_collective(TorchGroup(dist.group.WORLD)), f"{path}/{rank}.pt")
    dist.destroy_process_group()


def test_threads_and_processes_agree() -> None:
    threads = run_in_threads(2, every_collective)
    x = torch.arange(12.0).view(4, 3)
    assert torch.equal(threads[0][0], 2 * x + 100)
    assert torch.equal(threads[1][3], (2 * x + 100)[2:])
    assert torch.equal(threads[1][4], torch.cat((x[2:], x[2:] + 100), 1))
    assert torch.equal(threads[0][5], x + 100)
    with tempfile.TemporaryDirectory() as path:
        mp.start_processes(in_process, args=(path,), nprocs=2, start_method="spawn")
        for rank in range(2):
            for ours, theirs in zip(threads[rank], torch.load(f"{path}/{rank}.pt"), strict=True):
                assert torch.equal(ours, theirs)


def test_one_rank_is_the_identity() -> None:
    x = torch.randn(4, 3)
    assert all(torch.equal(y, x) for y in every_collective_of_one(x))


def every_collective_of_one(x: torch.Tensor) -> list[torch.Tensor]:
    group = SingleGroup()
    return [group.all_reduce(x), group.all_gather(x, 0), group.reduce_scatter(x, 0), group.all_to_all(x, 0, 1)]


def test_error_on_one_rank_releases_the_others() -> None:
    def work(group: Group) -> None:
        if group.rank == 1:
            raise ValueError("rank 1 stops")
        group.all_reduce(torch.ones(1))

    with pytest.raises(ValueError, match="rank 1 stops"):
        run_in_threads(3, work)


def test_the_current_group_is_the_threads_own() -> None:
    assert run_in_threads(3, lambda group: get_tp_group().rank) == [0, 1, 2]
    assert get_tp_group().world_size == 1


def test_all_to_all_refuses_a_ragged_split() -> None:
    with pytest.raises(ShapeError, match="multiple of 2"):
        run_in_threads(2, lambda group: all_to_all(torch.ones(3, 2), 0, 1, group))


def test_D7_valid_sizes_are_listed() -> None:
    """28 query heads and 4 KV heads: 7 and 14 divide the query heads only."""
    assert valid_tp_sizes(28, 4) == [1, 2, 4, 28]
    for size in (8, 7, 14):
        with pytest.raises(ConfigError, match="1, 2, 4, 28"):
            kv_heads_per_rank(28, 4, size)
    assert [kv_heads_per_rank(28, 4, n) for n in (1, 2, 4, 28)] == [4, 2, 1, 1]
