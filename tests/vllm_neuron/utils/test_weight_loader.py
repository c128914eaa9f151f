"""Weight loaders: the shards of all ranks glued together are the checkpoint, bit for bit; what does not fit is refused.

Tensors are filled with distinct values, so a shard of the right shape from the wrong place fails.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.utils.weight_loader import (
    SafetensorsWeightLoader,
    ShapeSlice,
    TensorSlice,
    fused_gate_up_weight_loader,
    fused_qkv_weight_loader,
    get_weight_loader,
    replicated_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
    sharding_weight_loader_with_padding,
    with_rank_override,
)

RANKS = st.integers(1, 64)
SIZE = st.integers(1, 5)
DIM = st.sampled_from([0, 1])


def distinct(*shape: int, start: int = 0) -> Tensor:
    """Every element another number; 16-bit patterns, so that bit-for-bit is meant literally."""
    count = torch.Size(shape).numel()
    return (torch.arange(start, start + count) % 32000).to(torch.int16).view(torch.bfloat16).reshape(shape)


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(torch.int16), b.view(torch.int16))


def shards(loader: SafetensorsWeightLoader, tensors: list[Tensor], ranks: int) -> list[Tensor]:
    """Every rank's tensor; the same shape must come out of a trial run on shapes alone."""
    out = []
    for rank in range(ranks):
        out.append(loader.load([TensorSlice(t) for t in tensors], rank))
        dry = loader.load([ShapeSlice(t.shape, t.dtype) for t in tensors], rank)
        assert dry.is_meta and dry.shape == out[-1].shape and dry.dtype == out[-1].dtype
    return out


@given(ranks=RANKS, size=SIZE, other=SIZE, dim=DIM, transposed=st.booleans())
def test_D5_shards_glue_back_to_the_checkpoint(ranks: int, size: int, other: int, dim: int, transposed: bool) -> None:
    shape = (ranks * size, other) if dim == 0 else (other, ranks * size)
    whole = distinct(*shape)
    stored = whole.t().contiguous() if transposed else whole
    parts = shards(sharding_weight_loader(dim, size, ranks, is_storage_transposed=transposed), [stored], ranks)
    assert same(torch.cat(parts, dim), whole)
    assert len({tuple(p.view(torch.int16).flatten().tolist()) for p in parts}) == ranks


@given(ranks=RANKS, total=st.integers(1, 200), dim=DIM)
def test_ragged_sizes_are_refused_or_padded_with_zeros(ranks: int, total: int, dim: int) -> None:
    whole = distinct(total, 3, start=1) if dim == 0 else distinct(3, total, start=1)
    size = -(-total // ranks)
    parts = shards(sharding_weight_loader(dim, size, ranks, pad_shard=True), [whole], ranks)
    glued = torch.cat(parts, dim)
    assert same(glued.narrow(dim, 0, total).contiguous(), whole)
    assert not glued.narrow(dim, total, ranks * size - total).view(torch.int16).any()
    if total % ranks:
        with pytest.raises(CheckpointError, match=f"size {ranks * size} along dimension {dim}"):
            sharding_weight_loader(dim, size, ranks).load([TensorSlice(whole)], 0)


@pytest.mark.parametrize("total", [4, 9, 16])
def test_padding_fills_only_the_last_rows_of_a_rounded_up_shard(total: int) -> None:
    loader = sharding_weight_loader(0, 2, 4, pad_shard=True)
    with pytest.raises(CheckpointError, match="size 8 along dimension 0"):
        loader.load([TensorSlice(distinct(total, 2))], 0)


@given(ranks=RANKS, size=SIZE, width=SIZE, more=st.integers(0, 4), dim=DIM)
def test_sharding_with_padding(ranks: int, size: int, width: int, more: int, dim: int) -> None:
    whole = distinct(ranks * size, width, start=1) if dim == 0 else distinct(width, ranks * size, start=1)
    loader = sharding_weight_loader_with_padding(
        dim, size, ranks, pad_dim=1 - dim, padded_size=width + more, unpadded_size=width
    )
    glued = torch.cat(shards(loader, [whole], ranks), dim)
    assert same(glued.narrow(1 - dim, 0, width).contiguous(), whole)
    assert not glued.narrow(1 - dim, width, more).reshape(-1).contiguous().view(torch.int16).any()


@given(
    kv_heads=st.integers(1, 8),
    groups=st.integers(1, 8),
    ranks=RANKS,
    head=st.integers(1, 3),
    head_v=st.integers(1, 3),
    dim=DIM,
    transposed=st.booleans(),
    fused=st.booleans(),
)
def test_D5_qkv_of_all_ranks_glue_back_to_q_k_and_v(
    kv_heads: int, groups: int, ranks: int, head: int, head_v: int, dim: int, transposed: bool, fused: bool
) -> None:
    heads = kv_heads * groups
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        heads = kv_heads = ranks
    replicas = max(1, ranks // kv_heads)
    rows = (heads // ranks * head, max(1, kv_heads // ranks) * head, max(1, kv_heads // ranks) * head_v)
    joined = distinct((heads + kv_heads) * head + kv_heads * head_v, 3)
    whole = list(joined.split([heads * head, kv_heads * head, kv_heads * head_v]))
    stored = [joined] if fused else whole
    if transposed != (dim == 1):
        stored = [t.t().contiguous() for t in stored]
    loader = fused_qkv_weight_loader(rows[0], rows[1], dim, ranks, transposed, replicas, v_size=rows[2])
    parts = [p if dim == 0 else p.t().contiguous() for p in shards(loader, stored, ranks)]
    q, k, v = zip(*(p.split(rows) for p in parts), strict=True)
    assert same(torch.cat(q), whole[0])
    for got, expected in ((k, whole[1]), (v, whole[2])):
        assert same(torch.cat(got[::replicas]), expected.contiguous())
        assert all(same(got[r], got[r - r % replicas]) for r in range(ranks))


def rows_of(loader: SafetensorsWeightLoader, tensors: list[Tensor], ranks: int) -> list[list[int]]:
    return [loader.load([TensorSlice(t) for t in tensors], r)[:, 0].int().tolist() for r in range(ranks)]


@pytest.mark.parametrize("fused", [True, False])
def test_D1_fused_qkv_is_cut_projection_by_projection(fused: bool) -> None:
    block = torch.arange(16.0).unsqueeze(1).expand(16, 8).contiguous()
    tensors = [block] if fused else list(block.split([8, 4, 4]))
    expected = [[0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]]
    assert rows_of(fused_qkv_weight_loader(4, 2, 0, 2), tensors, 2) == expected


@pytest.mark.parametrize("fused", [True, False])
def test_D3_fused_gate_up_is_cut_projection_by_projection(fused: bool) -> None:
    block = torch.arange(8.0).unsqueeze(1).expand(8, 8).contiguous()
    tensors = [block] if fused else list(block.split(4))
    assert rows_of(fused_gate_up_weight_loader(2, 0, 2), tensors, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@given(ranks=RANKS, size=SIZE, other=SIZE, fused=st.booleans(), transposed=st.booleans())
def test_D5_gate_and_up_glue_back(ranks: int, size: int, other: int, fused: bool, transposed: bool) -> None:
    block = distinct(2 * ranks * size, other)
    stored = [block] if fused else list(block.chunk(2))
    stored = [t.t().contiguous() for t in stored] if transposed else stored
    parts = shards(fused_gate_up_weight_loader(size, 0, ranks, transposed), stored, ranks)
    gate, up = zip(*(p.chunk(2) for p in parts), strict=True)
    assert same(torch.cat([*gate, *up]), block)


def test_kv_heads_are_replicated_by_neighbouring_ranks() -> None:
    q, k, v = (torch.arange(float(n)).unsqueeze(1) + base for n, base in ((8, 0), (2, 100), (2, 200)))
    assert rows_of(fused_qkv_weight_loader(2, 1, 0, 4, num_kv_replicas=2), [q, k, v], 4) == [
        [0, 1, 100, 200],
        [2, 3, 100, 200],
        [4, 5, 101, 201],
        [6, 7, 101, 201],
    ]


@pytest.mark.parametrize(
    "loader",
    [sharding_weight_loader(0, 2, 4), fused_qkv_weight_loader(2, 2, 0, 4), fused_gate_up_weight_loader(1, 0, 4)],
)
@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_group_is_refused(loader: SafetensorsWeightLoader, rank: int) -> None:
    with pytest.raises(ConfigError, match="0 to 3"):
        loader.load([TensorSlice(distinct(8, 2))], rank)


def test_biases_have_one_dimension() -> None:
    bias = distinct(12)
    assert same(torch.cat(shards(sharding_weight_loader(0, 3, 4), [bias], 4)), bias)
    with pytest.raises(CheckpointError, match="more than 1 dimensions"):
        sharding_weight_loader(1, 3, 4).load([TensorSlice(bias)], 0)


@pytest.mark.parametrize("count", [2, 4])
def test_a_wrong_number_of_projections_is_refused(count: int) -> None:
    with pytest.raises(CheckpointError, match="3 separate projections, or 1"):
        fused_qkv_weight_loader(2, 2, 0, 1).load([TensorSlice(distinct(2, 2))] * count, 0)


def test_projections_of_different_width_are_refused() -> None:
    tensors = [TensorSlice(distinct(2, 8)), TensorSlice(distinct(2, 9))]
    with pytest.raises(CheckpointError, match="tensors to join"):
        fused_gate_up_weight_loader(2, 0, 1).load(tensors, 0)


def test_a_projection_of_another_height_is_refused() -> None:
    tensors = [TensorSlice(distinct(n, 2)) for n in (8, 4, 6)]
    with pytest.raises(CheckpointError, match=r"\[6, 2\].*size 4 along dimension 0"):
        fused_qkv_weight_loader(4, 2, 0, 2).load(tensors, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sharding_weight_loader(-1, 2, 2),
        lambda: sharding_weight_loader(0, 0, 2),
        lambda: sharding_weight_loader(0, 2, 0),
        lambda: fused_qkv_weight_loader(2, 2, 0, 4, num_kv_replicas=3),
        lambda: sharding_weight_loader_with_padding(0, 2, 2, pad_dim=0, padded_size=4, unpadded_size=3),
        lambda: sharding_weight_loader_with_padding(0, 2, 2, pad_dim=1, padded_size=2, unpadded_size=3),
    ],
)
def test_arguments_are_checked_when_the_loader_is_made(make: object) -> None:
    with pytest.raises(ConfigError, match="weight loader: "):
        make()  # type: ignore[operator]


def test_rank_override_reads_another_ranks_shard() -> None:
    whole = distinct(8, 2)
    loader = with_rank_override(sharding_weight_loader(0, 2, 4), 3)
    assert all(same(part, whole[6:]) for part in shards(loader, [whole], 4))


def test_a_parameter_without_a_loader_is_replicated() -> None:
    whole = distinct(4, 2)
    parameter = torch.nn.Parameter(torch.empty(4, 2))
    assert same(get_weight_loader(parameter).load([TensorSlice(whole)], 3), whole)
    loader = replicated_weight_loader()
    set_weight_loader(parameter, loader)
    assert get_weight_loader(parameter) is loader
