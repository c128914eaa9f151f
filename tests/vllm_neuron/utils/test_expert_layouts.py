"""Experts in every stored form: the shards of all ranks, glued, are the checkpoint, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.nn.moe import Experts
from vllm_neuron.parallel import run_in_threads
from vllm_neuron.utils.weight_loader import (
    LazySlice,
    StridedView,
    TensorSlice,
    TransposedView,
    get_weight_loader,
    vector_loader,
)

Stored = tuple[list[LazySlice], str | None]


def slices(*tensors: Tensor) -> list[LazySlice]:
    return [TensorSlice(t.contiguous()) for t in tensors]


def transposed(*tensors: Tensor) -> list[LazySlice]:
    return [TransposedView(s) for s in slices(*tensors)]


def interleaved(both: Tensor) -> Tensor:
    """Gate rows first -> gate and up rows in turn, along the rows' dimension (1)."""
    gate, up = both.chunk(2, dim=1)
    return torch.stack((gate, up), dim=2).flatten(1, 2)


# Both: [E, 2 * I, H], gate rows first.
GATE_UP: dict[str, Callable[[Tensor], Stored]] = {
    "gate and up of each expert": lambda w: (slices(*[p for e in w for p in e.chunk(2)]), None),
    "a fused block for each expert": lambda w: (slices(*w), None),
    "one stack": lambda w: (slices(w), None),
    "one stack, transposed": lambda w: (transposed(w.mT), None),
    "one stack, interleaved": lambda w: (slices(interleaved(w)), "interleaved"),
    "one stack, interleaved and transposed": lambda w: (transposed(interleaved(w).mT), "interleaved"),
    "a stack of gates, a stack of ups": lambda w: (slices(*w.chunk(2, dim=1)), None),
    "experts and rows in one dimension": lambda w: (slices(*[p.flatten(0, 1) for p in w.chunk(2, dim=1)]), None),
    "the same as one tensor": lambda w: (slices(w.flatten(0, 1)), None),
}
# Two blocks of two experts look like all gates and all ups.
AMBIGUOUS = [("a fused block for each expert", 2), ("experts and rows in one dimension", 2)]
DOWN: dict[str, Callable[[Tensor], Stored]] = {
    "each expert": lambda w: (slices(*w), None),
    "one stack": lambda w: (slices(w), None),
    "one stack, transposed": lambda w: (transposed(w.mT), None),
    "experts and inputs in one dimension": lambda w: (transposed(w.mT.flatten(0, 1)), None),
}


def experts(
    count: int, hidden: int, width: int, *, bias: bool = False, gated: bool = True, whole: bool = False
) -> Experts:
    return Experts(
        hidden,
        width,
        count,
        act="silu",
        gated=gated,
        bias=bias,
        clamp=None,
        weight_on="output",
        whole=whole,
        spare=0,
        dtype=None,
    )


def shards(ranks: int, count: int, hidden: int, width: int, name: str, stored: Stored, **options: bool) -> list[Tensor]:
    """What each rank loads for one parameter; its shape is the parameter's."""
    tensors, layout = stored

    def load(group: object) -> Tensor:
        parameter = experts(count, hidden, width, **options).get_parameter(name)
        found = get_weight_loader(parameter).load(tensors, group.rank, layout)  # type: ignore[attr-defined]
        assert found.shape == parameter.shape
        return found

    return run_in_threads(ranks, load)


def glued(parts: Sequence[Tensor], *, halves: bool, dim: int) -> Tensor:
    if not halves:
        return torch.cat(list(parts), dim=dim)
    pairs = [part.chunk(2, dim=dim) for part in parts]
    return torch.cat([*(gate for gate, _ in pairs), *(up for _, up in pairs)], dim=dim)


sizes = st.tuples(st.integers(2, 5), st.integers(1, 5), st.integers(1, 3))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("form", GATE_UP)
@given(size=sizes)
def test_gate_and_up_glued_are_the_checkpoint(form: str, ranks: int, size: tuple[int, int, int]) -> None:
    count, hidden, width = size[0], size[1], 4 * size[2]
    assume((form, count) not in AMBIGUOUS)
    whole = torch.randn(count, 2 * width, hidden)
    found = shards(ranks, count, hidden, width, "gate_up.weight", GATE_UP[form](whole))
    assert torch.equal(glued(found, halves=True, dim=1), whole)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("form", DOWN)
@given(size=sizes)
def test_down_glued_is_the_checkpoint(form: str, ranks: int, size: tuple[int, int, int]) -> None:
    count, hidden, width = size[0], size[1], 4 * size[2]
    whole = torch.randn(count, hidden, width)
    found = shards(ranks, count, hidden, width, "down.weight", DOWN[form](whole))
    assert torch.equal(glued(found, halves=False, dim=2), whole)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("interleave", [False, True])
def test_biases_glued_are_the_checkpoint(ranks: int, interleave: bool) -> None:
    whole = torch.randn(3, 2 * 8)
    stored: Stored = (slices(interleaved(whole)), "interleaved") if interleave else (slices(whole), None)
    found = shards(ranks, 3, 5, 8, "gate_up.bias", stored, bias=True)
    assert torch.equal(glued(found, halves=True, dim=1), whole)
    down = torch.randn(3, 5)
    for part in shards(ranks, 3, 5, 8, "down.bias", (slices(down), None), bias=True):
        assert torch.equal(part, down)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("stacked", [False, True])
def test_experts_without_a_gate_glued_are_the_checkpoint(ranks: int, stacked: bool) -> None:
    whole = torch.randn(2, 8, 5)
    stored = slices(whole) if stacked else slices(*whole)
    found = shards(ranks, 2, 5, 8, "up.weight", (stored, None), gated=False)
    assert torch.equal(glued(found, halves=False, dim=1), whole)


@pytest.mark.parametrize("form", GATE_UP)
@pytest.mark.parametrize(("count", "ranks", "each"), [(60, 2, [30, 30]), (10, 4, [3, 3, 2, 2])])
def test_D9_whole_experts_glued_are_the_checkpoint(form: str, count: int, ranks: int, each: list[int]) -> None:
    whole = torch.arange(count).float()[:, None, None] + torch.rand(count, 6, 2)
    found = shards(ranks, count, 2, 3, "gate_up.weight", GATE_UP[form](whole), whole=True)
    assert [len(part) for part in found] == each
    assert torch.equal(torch.cat(found), whole)


@pytest.mark.parametrize("form", ["gate and up of each expert", "a fused block for each expert", "one stack"])
@pytest.mark.parametrize("change", [-1, 1])
def test_D9_a_missing_or_extra_expert_is_an_error(form: str, change: int) -> None:
    with pytest.raises(CheckpointError):
        shards(2, 6, 2, 4, "gate_up.weight", GATE_UP[form](torch.randn(6 + change, 8, 2)))


@pytest.mark.parametrize(("form", "count"), AMBIGUOUS)
def test_forms_that_look_alike_are_refused(form: str, count: int) -> None:
    with pytest.raises(CheckpointError, match="two experts or gates and ups"):
        shards(1, count, 3, 4, "gate_up.weight", GATE_UP[form](torch.randn(count, 8, 3)))


def test_tensors_of_the_wrong_width_are_an_error() -> None:
    for form in GATE_UP.values():
        with pytest.raises(CheckpointError):
            shards(2, 3, 2, 4, "gate_up.weight", form(torch.randn(3, 12, 2)))


def test_a_layout_that_experts_can_not_have_is_an_error() -> None:
    whole = torch.randn(3, 8, 2)
    with pytest.raises(ConfigError, match="interleaved"):
        shards(1, 3, 2, 4, "gate_up.weight", (slices(whole), "interleave"))
    with pytest.raises(ConfigError, match="none"):
        shards(1, 3, 8, 2, "down.weight", (slices(whole), "interleaved"))


def test_a_strided_view_reads_every_second_row() -> None:
    base = torch.randn(3, 8)
    view = StridedView(TensorSlice(base), 1, 1, 2)
    assert view.get_shape() == [3, 4]
    assert torch.equal(view[:, 1:3], base[:, 1::2][:, 1:3])
    with pytest.raises(CheckpointError, match="multiple of 2"):
        StridedView(TensorSlice(torch.randn(3)), 0, 0, 2)


def test_a_vector_may_be_stored_as_a_row() -> None:
    vector = torch.randn(4)
    for stored in (vector, vector[None]):
        assert torch.equal(vector_loader(4).load(slices(stored), 0), vector)
    with pytest.raises(CheckpointError):
        vector_loader(4).load(slices(vector[:3]), 0)
