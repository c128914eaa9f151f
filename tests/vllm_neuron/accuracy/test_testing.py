"""Three-way and two-way assertions on synthetic tensors: what BF16 explains passes, faults do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vllm_neuron.accuracy.results import EXPLAINED
from vllm_neuron.accuracy.testing import (
    ComparisonError,
    assert_close,
    assert_close_cosine,
    assert_close_three_way,
    compare_three_way,
)
from vllm_neuron.errors import ShapeError

Three = tuple[Tensor, Tensor, Tensor]


def three(seed: int, shape: tuple[int, ...] = (32, 48), size: float = 1.0) -> Three:
    """Target, expected and baseline as three runs of one sum: gold in fp32, two noisy ones rounded to bf16."""
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(shape, generator=generator)

    def run() -> Tensor:
        return (x + 0.01 * size * torch.randn(shape, generator=generator)).bfloat16()

    return run(), x, run()


FAULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "three times the noise": lambda t, x: x + 3 * (t.float() - x),
    "an offset": lambda t, x: t.float() + 0.01 * x.square().mean().sqrt(),
    "a scale": lambda t, x: t.float() * 1.05,
    "one outlier": lambda t, x: _outlier(t, x),
    "transposed": lambda t, x: t.float().flatten().view(t.shape[1], t.shape[0]).T.contiguous(),
    "rows swapped": lambda t, x: t.float().flip(0),
    "a row of zeros": lambda t, x: t.float().index_fill(0, torch.tensor([5]), 0.0),
}


def _outlier(t: Tensor, x: Tensor) -> Tensor:
    out = t.float().clone()
    out[2, 7] += 8 * (t.float() - x).abs().max()
    return out


@given(st.integers(0, 10**6), st.sampled_from([1e-4, 1.0, 1e5]), st.sampled_from([(16, 16), (8, 128), (3, 5, 64)]))
def test_bf16_noise_passes(seed: int, size: float, shape: tuple[int, ...]) -> None:
    target, expected, baseline = three(seed, shape, size)
    result = assert_close_three_way(target=target, expected=expected, baseline=baseline)
    assert result.verdict == EXPLAINED and result.shape == shape and result.dtype == "bfloat16"


@given(st.integers(0, 10**6), st.sampled_from(sorted(FAULTS)), st.sampled_from([1e-4, 1.0, 1e5]))
def test_faults_fail(seed: int, fault: str, size: float) -> None:
    target, expected, baseline = three(seed, size=size)
    wrong = FAULTS[fault](target, expected).bfloat16()
    with pytest.raises(ComparisonError, match="fail: "):
        assert_close_three_way(target=wrong, expected=expected, baseline=baseline)


def test_message_shows_errors_worst_element_and_verdict() -> None:
    target, expected, baseline = three(1)
    target[2, 7] = 50.0
    with pytest.raises(AssertionError) as caught:
        assert_close_three_way(target=target, expected=expected, baseline=baseline, name="layers.3.mlp")
    text = str(caught.value)
    assert text.startswith("layers.3.mlp: fail: ")
    for words in ("target - expected", "baseline - expected", "target - baseline", "Bhattacharyya"):
        assert words in text
    worst = f"worst at [2, 7]: target 50, expected {float(expected[2, 7]):.6g}, baseline {float(baseline[2, 7]):.6g}"
    assert worst in text
    result = caught.value.result
    assert not result.passed and result.worst.index == (2, 7)
    assert result.target.linf == pytest.approx(50 - float(expected[2, 7]))


def test_an_offset_is_called_one() -> None:
    target, expected, baseline = three(2)
    found = compare_three_way(target=(target.float() + 0.05).bfloat16(), expected=expected, baseline=baseline)
    assert "mostly an offset of +0.0" in found.verdict


def test_where_bf16_is_exact_a_few_ulps_are_free() -> None:
    """A product by a power of two: the baseline has no error, and the target may round but not be wrong."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected, exact = x.float() * 4, x * 4
    near = exact.clone()
    near[0, 0] = (exact[0, 0].view(torch.int16) + 1).view(torch.bfloat16)
    assert compare_three_way(target=exact, expected=expected, baseline=exact).rms_ratio == 0.0
    assert compare_three_way(target=near, expected=expected, baseline=exact).passed
    far = exact.clone()
    far[0, 0] += 0.5
    assert not compare_three_way(target=far, expected=expected, baseline=exact).passed
    biased = (exact.float() * (1 + 2**-6)).bfloat16()
    assert not compare_three_way(target=biased, expected=expected, baseline=exact).passed
    loose = compare_three_way(target=biased, expected=expected, baseline=exact, rtol=0.02)
    assert loose.verdict == "pass: within 2e-02 of the gold" and loose.bc_limit == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_never_match(value: float) -> None:
    target, expected, baseline = three(3)
    target[1, 2] = value
    found = compare_three_way(target=target, expected=expected, baseline=baseline)
    assert found.verdict == "fail: NaN or infinity at [1, 2]"
    expected[1, 2] = baseline[1, 2] = value
    both = compare_three_way(target=target, expected=expected, baseline=baseline)
    assert both.verdict == "refused: the reference gives NaN or infinity at [1, 2]"
    assert not compare_three_way(target=expected, expected=expected, baseline=expected).passed


def test_shapes_dtypes_and_emptiness() -> None:
    target, expected, baseline = three(4)

    def verdict(t: Tensor, x: Tensor, b: Tensor) -> str:
        return compare_three_way(target=t, expected=x, baseline=b).verdict

    assert verdict(target.T, expected, baseline).startswith("fail: shape [48, 32], expected [32, 48]")
    assert verdict(target[:, :1], expected, baseline).startswith("fail: shape")  # no broadcasting
    assert verdict(target, expected, baseline[:1]).startswith("refused: the baseline has shape")
    assert verdict(target.float(), expected, baseline).startswith("fail: dtype torch.float32, the baseline has")
    assert verdict(target, expected.bfloat16(), baseline).startswith("refused: the gold is torch.bfloat16")
    assert verdict(target[:0], expected[:0], baseline[:0]).startswith("refused: nothing to compare")
    assert compare_three_way(target=[], expected=[], baseline=[]).outcome == "refused"


def test_lists_are_pooled_and_none_hides() -> None:
    parts = [three(seed, size=size) for seed, size in ((1, 1.0), (2, 1e-3), (3, 1e3))]
    targets, golds, baselines = (list(side) for side in zip(*parts, strict=True))
    good = assert_close_three_way(target=targets, expected=golds, baseline=baselines, name="layers")
    assert good.target is not None and good.target.count == 3 * 32 * 48
    # The small tensor is wrong; next to the large one its error is nothing.
    targets[1] = targets[1].flip(0)
    bad = compare_three_way(target=targets, expected=golds, baseline=baselines)
    assert not bad.passed and bad.l2_ratio > 3 > bad.rms_ratio
    uneven = compare_three_way(target=targets[:2], expected=golds, baseline=baselines)
    assert uneven.verdict.startswith("refused: 2 tensors, 3 expected")


def test_a_float64_gold_measures_float32() -> None:
    a = torch.randn(64, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gold, found = a @ a.T, a.float() @ a.float().T
    other = (a.float()[:, 256:] @ a.float()[:, 256:].T) + (a.float()[:, :256] @ a.float()[:, :256].T)
    assert assert_close_three_way(target=other, expected=gold, baseline=found).verdict == "pass: what float32 explains"
    assert not compare_three_way(target=other * (1 + 1e-5), expected=gold, baseline=found).passed


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 0.1)])
def test_assert_close_defaults(dtype: torch.dtype, step: float) -> None:
    x = torch.linspace(-1, 1, 101)
    assert_close(x.to(dtype), x)
    with pytest.raises(ComparisonError, match=r"error .* at \[7\], allowed"):
        assert_close((x + step * torch.eye(101)[7]).to(dtype), x)
    assert_close(x + step, x, rtol=2 * step)
    assert_close(x + step, x, atol=2 * step, rtol=0.0)


def test_assert_close_refusals() -> None:
    x = torch.ones(3)
    nan = torch.tensor([1.0, float("nan"), 1.0])
    with pytest.raises(ComparisonError, match=r"NaN or infinity in actual at \[1\]"):
        assert_close(nan, nan)
    with pytest.raises(ComparisonError, match="shape"):
        assert_close(x, x[None])
    with pytest.raises(ShapeError):
        assert_close(x[:0], x[:0])
    assert_close(torch.tensor([1, 2]), torch.tensor([1, 2]))
    with pytest.raises(ComparisonError):
        assert_close(torch.tensor([1, 2]), torch.tensor([1, 3]))


def test_cosine_floor() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 256, generator=generator)
    noisy = x + 0.02 * torch.randn(10, 256, generator=generator)
    assert assert_close_cosine(noisy.bfloat16(), x) > 0.9995
    with pytest.raises(ComparisonError, match="cosine"):
        assert_close_cosine(noisy, x)  # float32 has no such errors
    wrong = noisy.clone()
    wrong[4] = x[5]
    with pytest.raises(ComparisonError, match=r"at vector 4, floor 0\.999; 1 of 10"):
        assert_close_cosine(wrong.bfloat16(), x)
    zeros = torch.zeros(2, 4)
    assert assert_close_cosine(zeros, zeros) == 1.0
    with pytest.raises(ComparisonError):
        assert_close_cosine(zeros + 1, zeros)
