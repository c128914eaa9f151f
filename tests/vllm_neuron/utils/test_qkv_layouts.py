"""Layouts of queries, keys and values: the shards of all ranks, glued together, are the checkpoint, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.model.loading import Fuse, Map
from vllm_neuron.utils.weight_loader import (
    LAYOUTS,
    GatherView,
    QKVShape,
    ShapeSlice,
    TensorSlice,
    TransposedView,
    gate_layout_loader,
    qkv_layout_loader,
    sharding_weight_loader,
)

SHAPES = {
    "multi-head": QKVShape(8, 8, 4, 4),
    "grouped": QKVShape(8, 2, 4, 4),
    "multi-query": QKVShape(8, 1, 4, 4),
    "values of another size": QKVShape(8, 4, 4, 6),
}
BLOCKS = [name for name in LAYOUTS if name != "query_gate"]


def numbers(*shape: int) -> Tensor:
    """Different numbers everywhere."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(*shape)


def glued(shards: list[Tensor], shape: QKVShape) -> list[Tensor]:
    """q, k and v of the whole layer from the ranks' shards; replicas must agree."""
    ranks = len(shards)
    replicas = max(1, ranks // shape.kv_heads)
    q, k, v = shape.rows
    sizes = (q // ranks, k * replicas // ranks, v * replicas // ranks)
    parts = [list(shard.split(sizes)) for shard in shards]
    for rank in range(ranks):
        for i in (1, 2):
            assert torch.equal(parts[rank][i], parts[rank // replicas * replicas][i])
    return [
        torch.cat([p[0] for p in parts]),
        torch.cat([p[1] for p in parts[::replicas]]),
        torch.cat([p[2] for p in parts[::replicas]]),
    ]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("layout", BLOCKS)
@pytest.mark.parametrize("kind", SHAPES)
def test_D1_D5_shards_of_a_block_are_the_checkpoint(kind: str, layout: str, ranks: int, bias: bool) -> None:
    shape = SHAPES[kind]
    if layout in ("per_head", "four_blocks") and shape.heads != shape.kv_heads:
        with pytest.raises(ConfigError, match=layout):
            shape.ranges(layout)
        return
    block = numbers(sum(shape.rows)) if bias else numbers(sum(shape.rows), 5)
    loader = qkv_layout_loader(shape, ranks)
    whole = glued([loader.load([TensorSlice(block)], rank, layout) for rank in range(ranks)], shape)
    rebuilt = torch.full_like(block, -1)
    for part, ranges in zip(whole, shape.ranges(layout), strict=True):
        for piece, (start, stop) in zip(part.split([b - a for a, b in ranges]), ranges, strict=True):
            rebuilt[start:stop] = piece
    assert torch.equal(rebuilt, block)


def test_grouped_and_per_head_are_what_the_families_view_them_as() -> None:
    """As Falcon and GPT-NeoX split their block."""
    shape = QKVShape(8, 2, 4, 4)
    block = numbers(sum(shape.rows), 5)
    loader = qkv_layout_loader(shape, 1)
    q, k, v = glued([loader.load([TensorSlice(block)], 0, "grouped")], shape)
    view = block.view(2, 8 // 2 + 2, 4, 5)
    assert torch.equal(q, view[:, :-2].reshape(-1, 5))
    assert torch.equal(k, view[:, -2].reshape(-1, 5)) and torch.equal(v, view[:, -1].reshape(-1, 5))
    heads = QKVShape(8, 8, 4, 4)
    block = numbers(sum(heads.rows), 5)
    q, k, v = glued([qkv_layout_loader(heads, 1).load([TensorSlice(block)], 0, "per_head")], heads)
    view = block.view(8, 3, 4, 5)
    for i, part in enumerate((q, k, v)):
        assert torch.equal(part, view[:, i].reshape(-1, 5))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_gate_inside_the_query_projection(ranks: int) -> None:
    shape = QKVShape(8, 2, 4, 4)
    stored, k, v = numbers(2 * 32, 5), numbers(8, 5) + 1000, numbers(8, 5) + 2000
    loader = qkv_layout_loader(shape, ranks)
    gate = gate_layout_loader(sharding_weight_loader(0, 32 // ranks, ranks), shape)
    slices = [TensorSlice(part) for part in (stored, k, v)]
    q, k2, v2 = glued([loader.load(slices, rank, "query_gate") for rank in range(ranks)], shape)
    gates = torch.cat([gate.load([slices[0]], rank, "query_gate") for rank in range(ranks)])
    assert torch.equal(torch.stack((q.view(8, 4, 5), gates.view(8, 4, 5)), dim=1).reshape(-1, 5), stored)
    assert torch.equal(k2, k) and torch.equal(v2, v)


class Counted(TensorSlice):
    """Counts the numbers that are read."""

    read = 0

    def __getitem__(self, index: Any) -> Tensor:
        part = super().__getitem__(index)
        self.read += part.numel()
        return part


@pytest.mark.parametrize("layout", BLOCKS)
def test_a_rank_reads_its_own_rows_only(layout: str) -> None:
    shape = QKVShape(8, 8, 4, 4)
    source = Counted(numbers(96, 5))
    qkv_layout_loader(shape, 4).load([source], 2, layout)
    assert source.read == 96 * 5 // 4
    stored = Counted(numbers(5, 96))
    qkv_layout_loader(shape, 4).load([TransposedView(stored)], 2, layout)
    assert stored.read == 96 * 5 // 4


@pytest.mark.parametrize("layout", BLOCKS)
def test_transposed_storage_is_the_same_matrix(layout: str) -> None:
    shape = QKVShape(8, 8, 4, 4)
    block, loader = numbers(96, 5), qkv_layout_loader(shape, 2)
    stored = TensorSlice(block.t().contiguous())
    for rank in range(2):
        assert torch.equal(
            loader.load([TransposedView(stored)], rank, layout), loader.load([TensorSlice(block)], rank, layout)
        )


def test_views() -> None:
    x = numbers(3, 4, 5)
    turned = TransposedView(TensorSlice(x))
    assert turned.get_shape() == [3, 5, 4] and torch.equal(turned[1:2, 2:5, :3], x.transpose(1, 2)[1:2, 2:5, :3])
    assert torch.equal(TransposedView(TensorSlice(x[0, 0]))[1:3], x[0, 0, 1:3])
    view = GatherView(TensorSlice(x[0]), 1, [(3, 5), (0, 1), (2, 3)])
    assert view.get_shape() == [4, 4]
    expected = x[0][:, [3, 4, 0, 2]]
    for start in range(5):
        for stop in range(start, 5):
            assert torch.equal(view[1:3, start:stop], expected[1:3, start:stop])
    with pytest.raises(CheckpointError):
        GatherView(TensorSlice(x[0]), 1, [(3, 6)])
    assert GatherView(ShapeSlice([8, 2], torch.float32), 0, [(0, 2), (6, 8)])[1:4].shape == (3, 2)


def test_some_projections_alone() -> None:
    """A bias on q and v; a layer whose values are its keys; one that reads another layer's cache."""
    shape = QKVShape(4, 2, 2, 2)
    q, k, v = (TensorSlice(numbers(size) + 1) for size in shape.rows)
    some = qkv_layout_loader(shape, 1, (True, False, True))
    assert some.takes == ((0, 2), 3)
    assert some.load([q, v], 0).tolist() == [*range(1, 9), 0, 0, 0, 0, *range(1, 5)]
    assert qkv_layout_loader(shape, 2, (True, True)).load([q, k], 1).tolist() == [5, 6, 7, 8, 3, 4]
    assert qkv_layout_loader(shape, 2, (True,)).load([q], 1).tolist() == [5, 6, 7, 8]
    with pytest.raises(CheckpointError, match="2 projections"):
        some.load([q, k, v], 0)
    with pytest.raises(ConfigError, match="layout"):
        some.load([q], 0, "grouped")


def test_D7_sizes_that_do_not_fit_are_named() -> None:
    shape = QKVShape(8, 2, 4, 4)
    with pytest.raises(CheckpointError, match="one block of 32 \\+ 8 \\+ 8"):
        qkv_layout_loader(shape, 2).load([TensorSlice(numbers(96, 5))], 0, "grouped")
    with pytest.raises(CheckpointError, match="queries and gates"):
        qkv_layout_loader(shape, 2).load([TensorSlice(numbers(32, 5))] * 3, 0, "query_gate")
    with pytest.raises(ConfigError, match="rank"):
        qkv_layout_loader(shape, 2).load([TensorSlice(numbers(48, 5))], 2)
    with pytest.raises(ConfigError, match="none, for this parameter"):
        sharding_weight_loader(0, 16, 2).load([TensorSlice(numbers(32, 5))], 0, "grouped")


def test_rows_of_a_table_know_their_layouts() -> None:
    with pytest.raises(ConfigError, match="per_head"):
        Map("attn.qkv", "qkv", layout="perhead")
    with pytest.raises(ConfigError, match="query_gate"):
        Fuse("attn.qkv", "{q,k,v}", layout="grouped")
