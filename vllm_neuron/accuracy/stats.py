"""How alike two distributions of errors are, and error sizes gathered piece by piece.

**Bhattacharyya coefficient.** For two densities p and q it is the integral of sqrt(p q): 1 when they are the same, 0
when they never meet. Two centred Gaussians whose widths differ by a factor r have sqrt(2 r / (1 + r^2)): 0.99 is
r = 1.22, and r = 3 gives 0.77. Two of one width s that are d apart have exp(-d^2 / 8 s^2): 0.99 is d = 0.28 s. So
"0.99 or more" reads: noise at most a fifth larger than the baseline's, and no offset worth naming.

Estimating it from samples has three traps, and this module avoids them so:

* *Bins.* Both samples are counted in the same fixed bins: sign, power of two and three more bits of the float32 error
  (8 bins an octave, zero apart). No bin depends on the data, so counts of pieces, prompts and ranks add up, one outlier
  does not stretch the bins, and the unit of the tensor does not matter.
* *Signs.* Errors keep their sign: a pure offset has the right sizes and the wrong sign.
* *Small samples.* With k bins and n and m samples of the *same* distribution the plain estimate is too low by
  (k - 1) / 8 (1/n + 1/m) on average, with a standard deviation of sqrt(2 (k - 1)) / 8 (1/n + 1/m) (the squared
  Hellinger distance of two multinomial samples is a scaled chi-square of k - 1 degrees of freedom). Neighbouring bins
  are therefore joined to about 2 n^(1/3) groups of equal mass (Rice's rule, 4 to 64), the bias is added back, and the
  limit is lowered by four standard deviations: 0.9899 for a million elements, 0.984 for a thousand, 0.95 for a
  hundred. A tensor of a few dozen elements can't tell a factor of two, and the lowered limit says so; of
  pairs of 32 elements about one in a hundred is still found unlike, of larger ones next to none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.errors import UnsupportedError

BC_LIMIT = 0.99
BINS = 1 << 12
_SIGN = BINS >> 1
_DEVIATIONS = 4.0
_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}


def ulp(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The distance between neighbouring numbers of ``dtype`` at the size of each element, of x's shape.

    0.125 for bf16 in [16, 32), 0.25 in [32, 64); at zero that of the smallest normal number. float64 for a float64
    x, else float32.

    Raises:
        UnsupportedError: ``dtype`` is none of bfloat16, float16, float32 and float64.
    """
    if dtype not in _MANTISSA:
        raise UnsupportedError("ulp.dtype", dtype, "bfloat16, float16, float32 or float64")
    wide, whole, exponent = (
        (torch.float64, torch.int64, 0x7FF << 52)
        if x.dtype == torch.float64
        else (torch.float32, torch.int32, 0xFF << 23)
    )
    size = x.to(wide).abs().clamp(min=max(torch.finfo(dtype).tiny, torch.finfo(wide).tiny))
    # Without its mantissa a float is the power of two below it.
    return (size.view(whole) & exponent).view(wide) * 2.0 ** -_MANTISSA[dtype]


def histogram(errors: Tensor) -> Tensor:
    """int64 [4096]: how many errors fall in each of the fixed bins, in the order of their value.

    Bin 2048 and 2047 hold zeros and what float32 can't tell from them.
    """
    bits = errors.float().reshape(-1).view(torch.int32) >> 20
    counts = torch.bincount(bits & (BINS - 1), minlength=BINS)
    return torch.cat((counts[_SIGN:].flip(0), counts[:_SIGN]))


@dataclass(frozen=True)
class Overlap:
    """A Bhattacharyya coefficient, and the least that samples of this size have to reach."""

    bc: float
    limit: float

    @property
    def alike(self) -> bool:
        """The coefficient reaches its limit."""
        return self.bc >= self.limit


def bhattacharyya(left: Tensor, right: Tensor, limit: float = BC_LIMIT) -> Overlap:
    """The coefficient of two histograms, corrected for small samples as the module says.

    Args:
        left, right: int64 [4096] from :func:`histogram`, or sums of such.
        limit: what very large samples have to reach.
    """
    n, m = int(left.sum()), int(right.sum())
    if not n or not m:
        return Overlap(float(n == m), limit)
    pooled = left / n + right / m
    wanted = max(4, min(64, round(2 * min(n, m) ** (1 / 3))))
    # The group of a bin: how much of the pooled mass lies before its middle.
    group = ((pooled.cumsum(0) - pooled / 2) / 2 * wanted).long().clamp(0, wanted - 1)
    p, q = (torch.zeros(wanted, dtype=torch.float64).index_add_(0, group, h.double()) for h in (left / n, right / m))
    k = int(((p + q) > 0).sum())
    size = (1 / n + 1 / m) / 8
    bc = min(1.0, float((p * q).sqrt().sum()) + (k - 1) * size)
    return Overlap(bc, limit - _DEVIATIONS * math.sqrt(2 * (k - 1)) * size)


@dataclass(frozen=True, eq=False)
class RowErrors:
    """Errors of each row of a piece, float64 [R] each.

    Attributes:
        target, baseline: root mean square. target_max, baseline_max: largest absolute value.
        gold: root mean square of the expected values. floor: what rounding alone may do (root mean square).
        floor_max: the floor of the row's largest element.
    """

    target: Tensor
    baseline: Tensor
    target_max: Tensor
    baseline_max: Tensor
    gold: Tensor
    floor: Tensor
    floor_max: Tensor


class Tally:
    """Sizes of three differences (target - expected, baseline - expected, target - baseline), piece by piece.

    Memory does not grow with the number of pieces, so a comparison of hundreds of millions of logits streams through.

    Args:
        dtype: that the target computes in; its ulps make the floor.
        rtol: relative error that is never held against the target; None for the ulps alone.
        samples: elements of a row that enter the histogram and the mean floor; longer rows are sampled with an even
            stride, since a million samples fix the coefficient to four digits. Every other number is of all elements.

    Attributes:
        bad: index of the first element of the target that is NaN or infinite; None if there is none.
        bad_reference: the same of the expected values or the baseline.
    """

    def __init__(self, dtype: torch.dtype, rtol: float | None = None, samples: int = 1 << 15) -> None:
        self.dtype, self.rtol, self.samples = dtype, rtol, samples
        self.count = 0
        self.squares = dict.fromkeys(("target", "baseline", "between", "gold", "floor"), 0.0)
        self.sums = dict.fromkeys(("target", "baseline", "between"), 0.0)
        self.largest = dict.fromkeys(("target", "baseline", "between", "in_floors"), 0.0)
        self.histograms = {side: torch.zeros(BINS, dtype=torch.int64) for side in ("target", "baseline")}
        self.bad: tuple[int, ...] | None = None
        self.bad_reference: tuple[int, ...] | None = None
        self.worst: tuple[tuple[int, ...], float, float, float] | None = None

    def add(self, target: Tensor, expected: Tensor, baseline: Tensor, at: tuple[int, ...] = ()) -> RowErrors | None:
        """Take in one piece.

        Args:
            target, expected, baseline: [..., D], one shape; differences are taken in float64 if any of them is.
            at: added to the indices of this piece: all but the last number come first, the last one is added to the
                first dimension.

        Returns:
            The errors of its rows; None when something is not finite (then ``bad`` or ``bad_reference`` is set).
        """
        wide = torch.float64 if torch.float64 in (target.dtype, expected.dtype, baseline.dtype) else torch.float32
        t, x, b = (each.detach().to(wide) for each in (target, expected, baseline))
        if not (finite(x) and finite(b)):
            where = ~(torch.isfinite(x) & torch.isfinite(b))
            self.bad_reference = self.bad_reference or _index(where.reshape(-1).int().argmax(), x, at)
            return None
        if not finite(t):
            self.bad = self.bad or _index((~torch.isfinite(t)).reshape(-1).int().argmax(), x, at)
            return None
        if not x.numel():
            return None
        et, eb = t - x, b - x
        self._worst(et, t, x, b, at)
        width = x.shape[-1] if x.dim() else 1
        rows = self._rows(et.reshape(-1, width), eb.reshape(-1, width), x.reshape(-1, width))
        self._sum(rows, width)
        self._between(t - b)
        stride = self._stride(width)
        for side, errors in (("target", et), ("baseline", eb)):
            self.sums[side] += float(errors.sum(dtype=torch.float64))
            self.histograms[side] += histogram(errors.reshape(-1, width)[:, ::stride])
        return rows

    def _rows(self, et: Tensor, eb: Tensor, x: Tensor) -> RowErrors:
        gold = _rms(x)
        scale = float(gold.square().mean().sqrt())
        # Rounding of an intermediate of the tensor's own size reaches small elements too.
        sampled = x[:, :: self._stride(x.shape[1])].abs().clamp(min=scale)
        largest = _largest(x).clamp(min=scale)
        floor, floor_max = _rms(ulp(sampled, self.dtype)) / 2, ulp(largest, self.dtype).double()
        if self.rtol is not None:
            floor, floor_max = torch.maximum(floor, self.rtol * gold), torch.maximum(floor_max, self.rtol * largest)
        return RowErrors(_rms(et), _rms(eb), _largest(et), _largest(eb), gold, floor, floor_max)

    def _stride(self, width: int) -> int:
        return -(-width // self.samples)

    def _sum(self, rows: RowErrors, width: int) -> None:
        self.count += len(rows.target) * width
        for side in ("target", "baseline", "gold", "floor"):
            self.squares[side] += float(getattr(rows, side).square().sum()) * width
        self.largest["target"] = max(self.largest["target"], float(rows.target_max.max()))
        self.largest["baseline"] = max(self.largest["baseline"], float(rows.baseline_max.max()))
        self.largest["in_floors"] = max(self.largest["in_floors"], float((rows.target_max / rows.floor_max).max()))

    def _between(self, difference: Tensor) -> None:
        width = difference.shape[-1] if difference.dim() else 1
        rows = difference.reshape(-1, width)
        self.squares["between"] += float(_rms(rows).square().sum()) * width
        self.sums["between"] += float(difference.sum(dtype=torch.float64))
        self.largest["between"] = max(self.largest["between"], float(_largest(rows).max()))

    def _worst(self, et: Tensor, t: Tensor, x: Tensor, b: Tensor, at: tuple[int, ...]) -> None:
        flat_e = et.reshape(-1)
        high, low = flat_e.argmax(), flat_e.argmin()
        flat = high if abs(float(flat_e[high])) >= abs(float(flat_e[low])) else low
        if self.worst is None or abs(float(flat_e[flat])) > abs(self.worst[1] - self.worst[2]):
            values = [float(each.reshape(-1)[flat]) for each in (t, x, b)]
            self.worst = (_index(flat, x, at), values[0], values[1], values[2])

    def merge(self, other: Tally) -> None:
        """Take in all that another tally of the same dtype and rtol did."""
        self.count += other.count
        for mine, theirs in ((self.squares, other.squares), (self.sums, other.sums)):
            for side, value in theirs.items():
                mine[side] += value
        for side, value in other.largest.items():
            self.largest[side] = max(self.largest[side], value)
        for side, counts in other.histograms.items():
            self.histograms[side] += counts
        self.bad, self.bad_reference = self.bad or other.bad, self.bad_reference or other.bad_reference
        sizes = [abs(w[1] - w[2]) if w else -1.0 for w in (self.worst, other.worst)]
        self.worst = other.worst if sizes[1] > sizes[0] else self.worst

    @property
    def rms_ratio(self) -> float:
        """Root mean square error of the target over that of the baseline or the floor, whichever is larger."""
        return ratio(self.rms("target"), max(self.rms("baseline"), self.rms("floor")))

    @property
    def linf_ratio(self) -> float:
        """Largest error of the target over that of the baseline, or in floors of the element where that is less."""
        return min(ratio(self.largest["target"], self.largest["baseline"]), self.largest["in_floors"])

    def rms(self, side: str) -> float:
        """Root mean square over everything so far: ``target``, ``baseline``, ``between``, ``gold`` or ``floor``."""
        return math.sqrt(self.squares[side] / self.count) if self.count else 0.0


def ratio(error: float, base: float) -> float:
    """``error / base``; 0 for no error, infinite for one over nothing."""
    return error / base if base else math.inf if error else 0.0


def finite(x: Tensor) -> bool:
    """No NaN and no infinity. A float64 sum of finite float32 numbers is finite, and one of others never is."""
    return math.isfinite(float(x.sum(dtype=torch.float64))) or bool(torch.isfinite(x).all())


def _rms(x_RD: Tensor) -> Tensor:
    # Scaled, so that squares of very large and very small float32 numbers stay in range.
    size = _largest(x_RD)
    unit = torch.where(size > 0, size, 1.0)
    if bool(((size > 1e15) | ((size < 1e-15) & (size > 0))).any()):
        x_RD = x_RD / unit[:, None].to(x_RD.dtype)
        return torch.linalg.vector_norm(x_RD, dim=1).double() * unit / math.sqrt(x_RD.shape[1])
    return torch.linalg.vector_norm(x_RD, dim=1).double() / math.sqrt(x_RD.shape[1])


def _largest(x_RD: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x_RD, ord=math.inf, dim=1).double()


def _index(flat: Tensor, like: Tensor, at: tuple[int, ...]) -> tuple[int, ...]:
    index = [int(each) for each in torch.unravel_index(flat, like.shape)] if like.dim() else []
    if at and index:
        index[0] += at[-1]
    return (*at[:-1], *index)
