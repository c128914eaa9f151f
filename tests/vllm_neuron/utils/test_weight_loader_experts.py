"""Expert-parallel loaders: which experts a rank reads, from stacked tensors and from one tensor for each expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.utils.weight_loader import (
    SafetensorsWeightLoader,
    SliceView,
    TensorSlice,
    expert_parallel_grouped_loader,
    expert_parallel_interleaved_loader,
    expert_parallel_tensor_dim_loader,
    expert_parallel_weight_loader,
    expert_range,
    fused_gate_up_weight_loader,
    replicated_weight_loader,
    sharding_weight_loader,
)


def load(loader: SafetensorsWeightLoader, tensors: list[Tensor], rank: int = 0) -> Tensor:
    return loader.load([TensorSlice(t) for t in tensors], rank)


def test_D9_sixty_experts_on_two_ranks() -> None:
    stacked = torch.arange(60.0).reshape(60, 1, 1).expand(60, 2, 3).contiguous()
    for rank, experts in ((0, range(30)), (1, range(30, 60))):
        loader = expert_parallel_tensor_dim_loader(expert_range(60, 2, rank), replicated_weight_loader())
        part = load(loader, [stacked], rank)
        assert part.shape == (30, 2, 3) and part[:, 0, 0].int().tolist() == list(experts)
        assert torch.equal(part, stacked[experts.start : experts.stop])


def test_D9_ten_experts_on_four_ranks_are_3_3_2_2() -> None:
    assert [list(expert_range(10, 4, r)) for r in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


@given(experts=st.integers(1, 300), data=st.data())
def test_D9_ranges_cover_every_expert_once_in_order(experts: int, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, min(experts, 64)))
    ranges = [expert_range(experts, ranks, r) for r in range(ranks)]
    assert [e for r in ranges for e in r] == list(range(experts))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(("experts", "ranks", "rank"), [(4, 5, 0), (4, 0, 0), (4, 2, 2), (4, 2, -1)])
def test_D9_more_ranks_than_experts_or_a_rank_outside_is_refused(experts: int, ranks: int, rank: int) -> None:
    with pytest.raises(ConfigError):
        expert_range(experts, ranks, rank)


@given(experts=st.integers(2, 9), ep=st.integers(1, 4), tp=st.integers(1, 4), size=st.integers(1, 3))
def test_D9_per_expert_and_stacked_files_load_to_the_same_parameter(experts: int, ep: int, tp: int, size: int) -> None:
    ep = min(ep, experts)
    gate = torch.arange(float(experts * tp * size * 2)).reshape(experts, tp * size, 2)
    up = gate + 1000
    forms = {
        "interleaved": [t[e] for e in range(experts) for t in (gate, up)],
        "grouped": [t[e] for t in (gate, up) for e in range(experts)],
        "stacked": [torch.cat((gate, up), 1)],
        "stacked apart": [gate, up],
    }
    one = fused_gate_up_weight_loader(size, 0, tp)
    for e_rank in range(ep):
        mine = expert_range(experts, ep, e_rank)
        either = expert_parallel_weight_loader(mine, one, experts)
        loaders = {
            "interleaved": [expert_parallel_interleaved_loader(mine, one, experts), either],
            "grouped": [expert_parallel_grouped_loader(mine, one, experts)],
            "stacked": [expert_parallel_tensor_dim_loader(mine, one), either],
            "stacked apart": [expert_parallel_tensor_dim_loader(mine, one, total_num_experts=experts)],
        }
        if experts > 2:
            loaders["stacked apart"].append(either)
        for t_rank in range(tp):
            rows = slice(t_rank * size, (t_rank + 1) * size)
            chosen = slice(mine.start, mine.stop)
            expected = torch.cat((gate[chosen, rows], up[chosen, rows]), 1)
            for form, several in loaders.items():
                for loader in several:
                    assert torch.equal(load(loader, forms[form], t_rank), expected), form


def test_a_stacked_form_in_another_layout_has_a_loader_of_its_own() -> None:
    down = torch.arange(24.0).reshape(3, 2, 4)
    apart, transposed = sharding_weight_loader(1, 2, 2), sharding_weight_loader(1, 2, 2, is_storage_transposed=True)
    loader = expert_parallel_weight_loader([1, 2], apart, 3, stacked_loader=transposed)
    from_files = load(loader, list(down), rank=1)
    from_stack = load(loader, [down.transpose(1, 2).contiguous()], rank=1)
    assert torch.equal(from_files, down[1:, :, 2:]) and torch.equal(from_stack, from_files)


def test_experts_may_be_counted_along_another_dimension() -> None:
    stacked = torch.arange(24.0).reshape(2, 4, 3)
    loader = expert_parallel_tensor_dim_loader([1, 3], replicated_weight_loader(), expert_dim=1)
    assert torch.equal(load(loader, [stacked]), stacked[:, [1, 3]].transpose(0, 1))


@pytest.mark.parametrize("indices", [[], [0, 0], [-1], [4]])
def test_local_experts_are_checked(indices: list[int]) -> None:
    with pytest.raises(ConfigError, match="local_expert_indices"):
        expert_parallel_interleaved_loader(indices, replicated_weight_loader(), 4)


@pytest.mark.parametrize("found", [3, 5])
def test_D9_a_missing_or_extra_expert_is_an_error(found: int) -> None:
    one = torch.zeros(2, 2)
    for make in (expert_parallel_interleaved_loader, expert_parallel_grouped_loader):
        with pytest.raises(CheckpointError, match="a multiple of 4 experts"):
            load(make([0], replicated_weight_loader(), 4), [one] * found)
    stacked = expert_parallel_tensor_dim_loader([0], replicated_weight_loader(), total_num_experts=4)
    with pytest.raises(CheckpointError, match="size 4 along dimension 0"):
        load(stacked, [torch.zeros(found, 2)])
    with pytest.raises(CheckpointError, match="expert 7"):
        load(expert_parallel_tensor_dim_loader([7], replicated_weight_loader()), [torch.zeros(found, 2)])


@given(data=st.data())
def test_views_of_views_read_what_plain_slicing_reads(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    plain = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    view: TensorSlice | SliceView = TensorSlice(plain)
    for _ in range(data.draw(st.integers(1, 4))):
        dim = data.draw(st.integers(0, plain.dim() - 1))
        start = data.draw(st.integers(0, plain.shape[dim]))
        stop = data.draw(st.integers(start, plain.shape[dim]))
        drop = stop == start + 1 and plain.dim() > 1 and data.draw(st.booleans())
        view = SliceView(view, dim, start, stop, drop=drop)
        plain = plain.narrow(dim, start, stop - start)
        plain = plain.squeeze(dim) if drop else plain
        assert view.get_shape() == list(plain.shape)
    assert torch.equal(view[...], plain)
    assert torch.equal(view[:1, ...], plain[:1])
    assert torch.equal(view[..., -1:], plain[..., -1:])


def test_views_refuse_bounds_outside_and_strides() -> None:
    base = TensorSlice(torch.zeros(3, 4))
    for bad in ((0, 2, 4), (0, 2, 1), (0, -1, 1)):
        with pytest.raises(CheckpointError, match="bounds inside"):
            SliceView(base, *bad)
    with pytest.raises(CheckpointError, match="more than 2 dimensions"):
        SliceView(base, 2, 0, 1)
    with pytest.raises(TypeError):
        base[::2]
    with pytest.raises(TypeError):
        base[0]
