"""The Bhattacharyya coefficient of errors: against its closed forms, on few samples, and piece by piece."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vllm_neuron.accuracy.stats import BINS, Tally, bhattacharyya, histogram, ulp
from vllm_neuron.errors import UnsupportedError


def normal(count: int, seed: int, size: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return size * torch.randn(count, generator=torch.Generator().manual_seed(seed)) + shift


def coefficient(left: torch.Tensor, right: torch.Tensor) -> float:
    return bhattacharyya(histogram(left), histogram(right)).bc


@pytest.mark.parametrize("ratio", [1.0, 1.22, 2.0, 3.0])
def test_widths_as_the_closed_form_says(ratio: float) -> None:
    found = coefficient(normal(200_000, 1), normal(200_000, 2, ratio))
    assert found == pytest.approx(math.sqrt(2 * ratio / (1 + ratio**2)), abs=2e-3)


@pytest.mark.parametrize("shift", [0.28, 1.0, 3.0])
def test_offsets_as_the_closed_form_says(shift: float) -> None:
    found = coefficient(normal(200_000, 1), normal(200_000, 2, shift=shift))
    assert found == pytest.approx(math.exp(-(shift**2) / 8), abs=3e-3)


def test_signs_count() -> None:
    positive = normal(10_000, 1).abs()
    assert coefficient(positive, positive) == 1.0
    assert coefficient(positive, -positive) < 0.05


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy"])
@pytest.mark.parametrize(("n", "m", "share"), [(32, 32, 0.02), (1000, 32, 0.02), (100, 500, 0.003), (20_000, 500, 0.0)])
def test_samples_of_one_distribution_are_alike(n: int, m: int, share: float, kind: str, size: float) -> None:
    generator = torch.Generator().manual_seed(7)

    def draw(count: int) -> torch.Tensor:
        if kind == "uniform":
            return size * (torch.rand(count, generator=generator) - 0.5)
        x = torch.randn(count, generator=generator)
        return size * (x if kind == "normal" else x * torch.randn(count, generator=generator).exp())

    pairs = 400
    unlike = sum(not bhattacharyya(histogram(draw(n)), histogram(draw(m))).alike for _ in range(pairs))
    assert unlike <= share * pairs


@given(st.integers(0, 10**6), st.sampled_from([200, 1000, 20_000]), st.sampled_from([1e-20, 1.0, 1e10]))
def test_three_times_the_noise_is_not_alike(seed: int, count: int, size: float) -> None:
    overlap = bhattacharyya(histogram(normal(count, seed, size)), histogram(normal(count, seed + 1, 3 * size)))
    assert not overlap.alike, overlap


def test_the_limit_tells_of_few_samples() -> None:
    limits = [bhattacharyya(histogram(normal(n, 1)), histogram(normal(n, 2))).limit for n in (100, 1000, 10**6)]
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(0.95, abs=0.01)
    assert limits[1] == pytest.approx(0.984, abs=0.002)
    assert limits[2] == pytest.approx(0.9899, abs=2e-4)


def test_histogram_is_in_the_order_of_values() -> None:
    values = torch.tensor([-3.0, -1e-3, -0.0, 0.0, 1e-3, 2.0, 3.0])
    places = [int(histogram(v[None]).argmax()) for v in values]
    assert places == sorted(places) and places[2] == BINS // 2 - 1 and places[3] == BINS // 2
    assert int(histogram(values).sum()) == 7


def test_ulp() -> None:
    x = torch.tensor([16.0, 31.9, 32.0, -40.0, 1.0, 0.0])
    assert ulp(x).tolist() == [0.125, 0.125, 0.25, 0.25, 2.0**-7, torch.finfo(torch.bfloat16).tiny * 2.0**-7]
    for value in (16.0, 40.0, 0.3):
        near = torch.tensor(value).bfloat16()
        up = (near.view(torch.int16) + 1).view(torch.bfloat16)
        assert float(up) - float(near) == float(ulp(near))
    with pytest.raises(UnsupportedError, match=r"ulp\.dtype"):
        ulp(x, torch.int8)


@given(st.integers(0, 1000), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_pieces_add_up(seed: int, parts: list[int]) -> None:
    total = sum(parts)
    x = normal(total * 9, seed).view(total, 9)
    t, b = x + 0.01 * normal(total * 9, seed + 1).view(total, 9), x.bfloat16().float()
    whole, pieces, merged = Tally(torch.bfloat16), Tally(torch.bfloat16), Tally(torch.bfloat16)
    whole.add(t, x, b)
    start = 0
    for count in parts:
        rows = slice(start, start + count)
        pieces.add(t[rows], x[rows], b[rows], (start,))
        one = Tally(torch.bfloat16)
        one.add(t[rows], x[rows], b[rows], (start,))
        merged.merge(one)
        start += count
    for other in (pieces, merged):
        assert other.count == whole.count and other.worst == whole.worst
        for side in ("target", "baseline", "between", "gold"):
            assert other.rms(side) == pytest.approx(whole.rms(side), rel=1e-6)
        assert torch.equal(other.histograms["target"], whole.histograms["target"])


def test_long_rows_are_sampled_for_the_histogram_alone() -> None:
    x = normal(3 * 1000, 1).view(3, 1000)
    t = x.clone()
    t[1, 7] += 5.0
    tally = Tally(torch.bfloat16, samples=100)
    tally.add(t, x, x)
    assert int(tally.histograms["target"].sum()) == 300
    assert tally.largest["target"] == pytest.approx(5.0) and tally.worst is not None and tally.worst[0] == (1, 7)
