"""Is it a bug or is it BF16? Assertions for tests of modules and models.

:func:`assert_close_three_way` needs no tolerance that somebody has to guess: the error of the target against the fp32
gold is measured by the error that Hugging Face itself makes in bf16. It passes when

* the errors are distributed alike (Bhattacharyya coefficient at least 0.99), or the target's root mean square error is
  no larger than the baseline's; and
* the worst element's error is less than 5 times the baseline's worst; and
* the L2 norm of the error is less than 3 times the baseline's.

Why these numbers. 0.99 lets pass noise that is up to 1.22 times as large as the baseline's (see ``accuracy.stats``):
another order of summation or another fused kernel moves it by 0.8 to 1.25 on real models, so smaller limits cry wolf.
The largest of a million Gaussian errors is 4.9 standard deviations and varies by less than a tenth; with the heavier
tails of real activations two correct runs differ by up to 1.7, so a factor of 5 is an element that is wrong by itself.
Three times the energy over the whole tensor is far outside both, and it bounds what a coefficient that is estimated
from few elements could let pass.

The floor. Where BF16 happens to be exact (an embedding row, a product by a power of two) the baseline has no error and
every ratio would be infinite. What any correct result may do is round: half a unit in the last place on average and
one at the worst element, at the size of the element or of the tensor's root mean square, whichever is larger. Errors
of the baseline below that count as that, so a worst element passes up to 5 such units. ``rtol`` raises the floor: to
``rtol`` times the expected values' root mean square, and for the worst element ``rtol`` times their largest.

NaN and infinity never match, not even themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.accuracy.results import EXPLAINED, ErrorStats, ThreeWay, Worst
from vllm_neuron.accuracy.stats import BC_LIMIT, Overlap, Tally, bhattacharyya, ratio
from vllm_neuron.errors import ShapeError

Tensors = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class Limits:
    """What a three-way comparison has to keep; see the module for the reasons.

    Attributes:
        bc: least Bhattacharyya coefficient, of large samples.
        rms: or largest ratio of root mean square errors.
        linf, l2: the ratios of the worst elements and of the norms stay below.
    """

    bc: float = BC_LIMIT
    rms: float = 1.0
    linf: float = 5.0
    l2: float = 3.0


LIMITS = Limits()
# Relative and absolute tolerance: a few roundings of each type. The relative one is of the largest expected value, so
# that elements near zero are not asked for digits that a sum of larger terms can't have.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}
# An error of relative size e that is orthogonal to the vector leaves a cosine of about 1 - e^2 / 2. BF16 leaves 1 to
# 3 % in the last hidden state of models of 20 to 30 layers: 0.9995; a float32 run leaves 1e-6 to 1e-5.
COSINES = {torch.float64: 1 - 1e-9, torch.float32: 1 - 1e-6, torch.float16: 0.9999, torch.bfloat16: 0.999}


class ComparisonError(AssertionError):
    """A comparison that failed.

    Attributes:
        result: its numbers; None for two-way comparisons.
    """

    def __init__(self, message: str, result: ThreeWay | None = None) -> None:
        super().__init__(message)
        self.result = result


def assert_close_three_way(
    *,
    target: Tensors,
    expected: Tensors,
    baseline: Tensors,
    rtol: float | None = None,
    name: str = "tensor",
) -> ThreeWay:
    """The target's error is what the baseline's dtype explains; the module says when.

    Args:
        target: what is tested; a tensor, or a list of tensors that are pooled.
        expected: the gold, float32 or wider: Hugging Face in fp32 with the same weights and inputs.
        baseline: Hugging Face in the target's dtype.
        rtol: relative error that is never held against the target; None for a few units in the last place.
        name: for the message.

    Returns:
        The numbers.

    Raises:
        ComparisonError: an AssertionError with the three errors, the worst element and the verdict; ``result`` has
            the numbers. Also for other shapes, other dtypes, NaN and infinity.
    """
    result = compare_three_way(target=target, expected=expected, baseline=baseline, rtol=rtol, name=name)
    if not result.passed:
        raise ComparisonError(explain(result), result)
    return result


def compare_three_way(
    *,
    target: Tensors,
    expected: Tensors,
    baseline: Tensors,
    rtol: float | None = None,
    name: str = "tensor",
    dtype: torch.dtype | None = None,
    limits: Limits = LIMITS,
) -> ThreeWay:
    """As :func:`assert_close_three_way`, but the verdict is in the result and nothing is raised.

    Args:
        dtype: that target and baseline were computed in, when they were widened since; None for their own.
        limits: other limits than the stated ones.
    """
    sides = [[each] if isinstance(each, Tensor) else list(each) for each in (target, expected, baseline)]
    shape, kind = _label(sides[0])
    wrong = _unlike(*sides)
    if wrong is not None:
        return ThreeWay(verdict=wrong, name=name, shape=shape, dtype=kind)
    several = not isinstance(target, Tensor)
    tallies = []
    for place, (t, x, b) in enumerate(zip(*sides, strict=True)):
        tallies.append(Tally(dtype or t.dtype, rtol))
        tallies[-1].add(t, x, b, (place, 0) if several else ())
    return judge(tallies, name=name, shape=shape, dtype=kind, limits=limits)


def _label(tensors: list[Tensor]) -> tuple[tuple[int, ...], str]:
    shape = tuple(tensors[0].shape) if len(tensors) == 1 else ()
    return shape, str(tensors[0].dtype).removeprefix("torch.") if tensors else ""


def _unlike(targets: list[Tensor], golds: list[Tensor], baselines: list[Tensor]) -> str | None:
    """A verdict when the tensors can't be compared."""
    if not len(targets) == len(golds) == len(baselines) or not targets:
        return f"refused: {len(targets)} tensors, {len(golds)} expected and {len(baselines)} of the baseline"
    for place, (t, x, b) in enumerate(zip(targets, golds, baselines, strict=True)):
        which = f" (tensor {place})" if len(targets) > 1 else ""
        if x.dtype not in (torch.float32, torch.float64):
            return f"refused: the gold is {x.dtype}, it has to be float32 or wider{which}"
        if b.shape != x.shape:
            return f"refused: the baseline has shape {list(b.shape)}, the gold {list(x.shape)}{which}"
        if t.shape != x.shape:
            return f"fail: shape {list(t.shape)}, expected {list(x.shape)}{which}"
        if t.dtype != b.dtype:
            return f"fail: dtype {t.dtype}, the baseline has {b.dtype}{which}"
        if not x.numel():
            return f"refused: nothing to compare, the tensors are empty{which}"
    return None


def judge(
    parts: Sequence[Tally],
    *,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    limits: Limits = LIMITS,
    noise_limit: float | None = None,
) -> ThreeWay:
    """The comparison of everything that some tallies took in.

    Args:
        parts: the errors of each part; they are pooled, and the limits of the worst element and of the norm hold for
            each part by itself, so that a small tensor can't hide behind a large one.
        noise_limit: the first condition also holds when the rms ratio is at most this; for callers who know how far
            chance can move it.
    """
    tally = Tally(parts[0].dtype, parts[0].rtol)
    for part in parts:
        tally.merge(part)
    if tally.bad_reference is not None:
        where = list(tally.bad_reference)
        return ThreeWay(
            verdict=f"refused: the reference gives NaN or infinity at {where}", name=name, shape=shape, dtype=dtype
        )
    if tally.bad is not None:
        return ThreeWay(verdict=f"fail: NaN or infinity at {list(tally.bad)}", name=name, shape=shape, dtype=dtype)
    overlap = bhattacharyya(tally.histograms["target"], tally.histograms["baseline"], limits.bc)
    linf, l2 = max(part.linf_ratio for part in parts), max(part.rms_ratio for part in parts)
    assert tally.worst is not None
    index, *values = tally.worst
    return ThreeWay(
        verdict=_verdict(tally, overlap, linf, l2, limits, noise_limit),
        name=name,
        shape=shape,
        dtype=dtype,
        target=_stats(tally, "target"),
        baseline=_stats(tally, "baseline"),
        between=_stats(tally, "between"),
        bc=overlap.bc,
        bc_limit=0.0 if _by_rtol(tally) else overlap.limit,
        rms_ratio=tally.rms_ratio,
        linf_ratio=linf,
        # Over the same elements the ratio of the norms is that of the root mean squares.
        l2_ratio=l2,
        worst=Worst(index, *values),
    )


def _verdict(tally: Tally, overlap: Overlap, linf: float, l2: float, limits: Limits, noise_limit: float | None) -> str:
    what = {torch.bfloat16: "BF16"}.get(tally.dtype, str(tally.dtype).removeprefix("torch."))
    if l2 >= limits.l2:
        return f"fail: error {l2:.3g} times that of {what}, limit {limits.l2:g}{_offset(tally)}"
    if linf >= limits.linf:
        return f"fail: worst element {linf:.3g} times that of {what}, limit {limits.linf:g}"
    noise = max(limits.rms, noise_limit or 0.0)
    rms = tally.rms_ratio
    if not overlap.alike and rms > noise:
        bc = f"Bhattacharyya {overlap.bc:.3f}, limit {overlap.limit:.3f}"
        return f"fail: error {rms:.3g} times that of {what} and distributed otherwise ({bc}){_offset(tally)}"
    if _by_rtol(tally):
        return f"pass: within {tally.rtol:.0e} of the gold"
    return EXPLAINED if what == "BF16" else f"pass: what {what} explains"


def _by_rtol(tally: Tally) -> bool:
    return tally.rtol is not None and tally.rms("target") <= tally.rtol * tally.rms("gold")


def _offset(tally: Tally) -> str:
    bias, size = tally.sums["target"] / tally.count, tally.rms("target")
    return f"; mostly an offset of {bias:+.3g}" if bias**2 >= size**2 / 2 else ""


def _stats(tally: Tally, side: str) -> ErrorStats:
    rms = tally.rms(side)
    return ErrorStats(
        rms=rms,
        l2=rms * tally.count**0.5,
        linf=tally.largest[side],
        bias=tally.sums[side] / tally.count,
        relative=ratio(rms, tally.rms("gold")),
        count=tally.count,
    )


def explain(result: ThreeWay) -> str:
    """The comparison in a few lines: verdict, the three errors, the worst element with its three values."""
    lines = [f"{result.name}: {result.verdict}"]
    for words, stats in (
        ("target - expected", result.target),
        ("baseline - expected", result.baseline),
        ("target - baseline", result.between),
    ):
        if stats is not None:
            lines.append(
                f"  {words:<20} rms {stats.rms:.4g} (relative {stats.relative:.2e}), max {stats.linf:.4g}, "
                f"mean {stats.bias:+.3g}"
            )
    if result.target is not None:
        lines.append(
            f"  ratios: rms {result.rms_ratio:.3g}, max {result.linf_ratio:.3g}; Bhattacharyya {result.bc:.4f} "
            f"(limit {result.bc_limit:.4f}), {result.target.count} elements"
        )
    if result.worst is not None:
        w = result.worst
        lines.append(
            f"  worst at {list(w.index)}: target {w.target:.6g}, expected {w.expected:.6g}, baseline {w.baseline:.6g}"
        )
    return "\n".join(lines)


def assert_close(
    actual: Tensor,
    expected: Tensor,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    name: str = "tensor",
) -> None:
    """Every element within ``atol + rtol * max|expected|``.

    Args:
        actual, expected: one shape; the narrower dtype of the two chooses the default tolerances (``TOLERANCES``).
            Integers and booleans have to be equal.
        rtol: of the largest expected value. atol: absolute.
        name: for the message.

    Raises:
        ComparisonError: naming the worst element; also for another shape, NaN and infinity.
        ShapeError: the tensors are empty.
    """
    _same_shape(actual, expected, name)
    if not (actual.is_floating_point() and expected.is_floating_point()):
        rtol, atol = rtol or 0.0, atol or 0.0
    else:
        _finite(actual, expected, name)
        narrow = max((actual.dtype, expected.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        defaults = TOLERANCES.get(narrow, TOLERANCES[torch.bfloat16])
        rtol, atol = defaults[0] if rtol is None else rtol, defaults[1] if atol is None else atol
    difference = (actual.double() - expected.double()).abs()
    allowed = atol + rtol * float(expected.double().abs().max())
    if float(difference.max()) > allowed:
        index = torch.unravel_index(difference.reshape(-1).argmax(), difference.shape)
        raise ComparisonError(
            f"{name}: fail: error {float(difference.max()):.4g} at {[int(i) for i in index]}, allowed {allowed:.4g} "
            f"(rtol {rtol:g} of the largest value, atol {atol:g}); actual {float(actual[index]):.6g}, expected "
            f"{float(expected[index]):.6g}; {int((difference > allowed).sum())} of {difference.numel()} elements"
        )


def assert_close_cosine(
    actual: Tensor, expected: Tensor, *, floor: float | None = None, name: str = "embedding"
) -> float:
    """Every vector points where it should: cosine at least ``floor``.

    Args:
        actual, expected: [..., D]. A vector of zeros matches only zeros.
        floor: None for the default of the narrower dtype (``COSINES``).
        name: for the message.

    Returns:
        The least cosine.

    Raises:
        ComparisonError: naming the worst vector; also for another shape, NaN and infinity.
        ShapeError: the tensors are empty.
    """
    _same_shape(actual, expected, name)
    _finite(actual, expected, name)
    if floor is None:
        narrow = max((actual.dtype, expected.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        floor = COSINES.get(narrow, COSINES[torch.bfloat16])
    a, b = (x.double().reshape(-1, x.shape[-1]) for x in (actual, expected))
    sizes = a.norm(dim=1) * b.norm(dim=1)
    zeros = (a == 0).all(1) & (b == 0).all(1)
    cosines = torch.where(zeros, 1.0, torch.where(sizes > 0, (a * b).sum(1) / sizes, -1.0))
    least = float(cosines.min())
    if least < floor:
        raise ComparisonError(
            f"{name}: fail: cosine {least:.6f} at vector {int(cosines.argmin())}, floor {floor:g}; "
            f"{int((cosines < floor).sum())} of {len(cosines)} vectors"
        )
    return least


def _same_shape(actual: Tensor, expected: Tensor, name: str) -> None:
    if actual.shape != expected.shape:
        raise ComparisonError(f"{name}: fail: shape {list(actual.shape)}, expected {list(expected.shape)}")
    if not expected.numel():
        raise ShapeError(name, list(expected.shape), "at least one element")


def _finite(actual: Tensor, expected: Tensor, name: str) -> None:
    for side, values in (("actual", actual), ("expected", expected)):
        bad = ~torch.isfinite(values)
        if bad.any():
            index = [int(i) for i in torch.unravel_index(bad.reshape(-1).int().argmax(), bad.shape)]
            raise ComparisonError(f"{name}: fail: NaN or infinity in {side} at {index}, {int(bad.sum())} elements")
