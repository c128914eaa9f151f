"""Sharded blocks: on any number of ranks they compute what the whole block computes, ragged vocabularies too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vllm_neuron.errors import ConfigError
from vllm_neuron.nn import ColumnParallelLinear, GatedMLP, LMHead, RowParallelLinear, Sampler, VocabDimShardedEmbedding
from vllm_neuron.nn.linear import QKVLinear
from vllm_neuron.parallel import Group, get_tp_group, run_in_threads
from vllm_neuron.utils.weight_loader import get_weight_loader


class Stored:
    """A tensor as a loader sees it in a file."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> Tensor:
        return self.tensor[index].clone()


def fill(parameter: nn.Parameter | None, *tensors: Tensor) -> None:
    """Load a parameter of the current rank from whole tensors."""
    assert parameter is not None
    loaded = get_weight_loader(parameter).load([Stored(t) for t in tensors], get_tp_group().rank)
    assert loaded.shape == parameter.shape
    parameter.data.copy_(loaded)


def on_ranks(ranks: int, work: Callable[[Group], Tensor]) -> Tensor:
    """The ranks' common result."""
    results = run_in_threads(ranks, work)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
RANKS = [1, 2, 4]


@pytest.mark.parametrize("ranks", RANKS)
def test_column_then_row_is_two_linears(ranks: int) -> None:
    up, down = nn.Linear(16, 24), nn.Linear(24, 16)

    def work(group: Group) -> Tensor:
        first, second = ColumnParallelLinear(16, 24, bias=True), RowParallelLinear(24, 16, bias=True)
        fill(first.weight, up.weight.data)
        fill(first.bias, up.bias.data)
        fill(second.weight, down.weight.data)
        fill(second.bias, down.bias.data)
        return second(first(X))

    torch.testing.assert_close(on_ranks(ranks, work), down(up(X)).detach())


@pytest.mark.parametrize("ranks", RANKS)
def test_gathered_columns_are_whole_on_every_rank(ranks: int) -> None:
    whole = nn.Linear(16, 24, bias=False)

    def work(group: Group) -> Tensor:
        layer = ColumnParallelLinear(16, 24, gather_output=True)
        fill(layer.weight, whole.weight.data)
        return layer(X)

    torch.testing.assert_close(on_ranks(ranks, work), whole(X).detach())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("fused", [False, True])
def test_gated_mlp_from_separate_or_fused_keys(ranks: int, fused: bool) -> None:
    gate, up, down = (
        torch.randn(s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate([(24, 16), (24, 16), (16, 24)])
    )

    def work(group: Group) -> Tensor:
        block = GatedMLP(16, 24, act="silu")
        fill(block.gate_up.weight, *([torch.cat((gate, up))] if fused else [gate, up]))
        fill(block.down.weight, down)
        return block(X)

    expected = (nn.functional.silu(X @ gate.t()) * (X @ up.t())) @ down.t()
    torch.testing.assert_close(on_ranks(ranks, work), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_embedding_and_head_with_a_vocabulary_that_does_not_divide(ranks: int) -> None:
    table = torch.randn(50, 16, generator=torch.Generator().manual_seed(3))
    ids = torch.tensor([0, 49, 17, 16, 33])

    def embed(group: Group) -> Tensor:
        block = VocabDimShardedEmbedding(50, 16, scale=2.0)
        fill(block.weight, table)
        return block(ids)

    def logits(group: Group) -> Tensor:
        block = LMHead(16, 50, softcap=3.0)
        fill(block.weight, table)
        return block(X)

    assert torch.equal(on_ranks(ranks, embed), table[ids] * 2.0)
    expected = 3.0 * torch.tanh(X @ table.t() / 3.0)
    torch.testing.assert_close(on_ranks(ranks, logits), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_the_greedy_sampler_never_takes_padding(ranks: int) -> None:
    """Every real logit is negative and padding is 0: the padded columns would win."""
    logits = -torch.rand(6, 50, generator=torch.Generator().manual_seed(4)) - 0.5
    logits[2, 49] = logits[2, 3] = -0.1  # a tie across shards goes to the lower index

    def work(group: Group) -> Tensor:
        shard = -(-50 // ranks)
        padded = torch.cat((logits, torch.zeros(6, shard * ranks - 50)), dim=1)
        return Sampler(50)(padded[:, group.rank * shard : (group.rank + 1) * shard])

    chosen = on_ranks(ranks, work)
    assert torch.equal(chosen, logits.argmax(-1)) and chosen[2] == 3


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_qkv_shards_glue_back_and_kv_heads_are_replicated(ranks: int) -> None:
    """8 query heads and 2 KV heads of size 4: ranks 4 and 8 hold copies of a KV head, neighbours the same one."""
    q, k, v = (torch.arange(float(n * 4 * 16)).view(n * 4, 16) + 1e4 * i for i, n in enumerate((8, 2, 2)))

    def work(group: Group) -> tuple[Tensor, ...]:
        layer = QKVLinear(16, 8, 2, 4)
        fill(layer.weight, q, k, v)
        assert layer.weight is not None
        return layer.weight.data.split(layer.sizes)

    shards = run_in_threads(ranks, work)
    copies = max(1, ranks // 2)
    assert torch.equal(torch.cat([s[0] for s in shards]), q)
    assert torch.equal(torch.cat([s[1] for s in shards[::copies]]), k)
    assert torch.equal(torch.cat([s[2] for s in shards[::copies]]), v)
    for rank, shard in enumerate(shards):
        assert torch.equal(shard[1], shards[rank // copies * copies][1])


def test_a_width_that_the_ranks_do_not_divide_lists_what_works() -> None:
    with pytest.raises(ConfigError, match="Sizes that work: 1, 2, 3, 4, 6, 8, 12, 24"):
        run_in_threads(5, lambda group: GatedMLP(16, 24, act="silu").down.tp_size)
