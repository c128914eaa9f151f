"""Whether rows of ours are those of the reference: to a relative bar in float32, to what BF16 explains in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vllm_neuron.accuracy.results import ThreeWay
from vllm_neuron.accuracy.testing import Limits, compare_three_way

BAR = 1e-5
# Rounding errors of the reference itself, laid on its input, may come out so many times as large and still be ours.
SLACK = 8.0
CHUNK = 1 << 24
# A block that sums in another order and rounds between (as ranks do) has errors up to twice as wide as a reference that
# rounds once; a fault that is as small as that and absent in float32 is none.
BLOCK_LIMITS = Limits(rms=2.0)


@dataclass(frozen=True)
class Finding:
    """What a comparison of rows says.

    Attributes:
        ok: they are the same, as far as the dtype goes.
        error: relative error of the worst row; infinite where a row is NaN, infinite or of another shape.
        row: first row that is over its bar.
        words: the numbers, in words.
        comparison: the three-way result, in bfloat16.
    """

    ok: bool
    error: float
    row: int | None = None
    words: str = ""
    comparison: ThreeWay | None = None


class Judge(Protocol):
    """Compares rows [R, ...]."""

    def __call__(self, target: Tensor, expected: Tensor, baseline: Tensor | None = None, name: str = "") -> Finding:
        """``expected`` is the reference in float32, ``baseline`` the reference in the dtype of ``target``."""
        ...


def row_errors(target: Tensor, expected: Tensor) -> Tensor:
    """[R]: ``|target - expected| / |expected|`` of each row; infinite where it is no number."""
    if target.shape != expected.shape:
        return torch.full((len(expected),), torch.inf)
    if not len(expected) or not expected[0].numel():
        return torch.zeros(len(expected))
    # A few rows at a time: logits of a large vocabulary take gigabytes.
    count = max(1, CHUNK // expected[0].numel())
    pairs = zip(target.split(count), expected.split(count), strict=True)
    return torch.cat([_row_errors(t.float().flatten(1), e.float().flatten(1)) for t, e in pairs])


def _row_errors(target: Tensor, expected: Tensor) -> Tensor:
    difference, size = (target - expected).norm(dim=1), expected.norm(dim=1)
    errors = torch.where(size > 0, difference / size, torch.where(difference > 0, torch.inf, 0.0))
    return torch.where(errors.isfinite(), errors, torch.inf)


class ExactJudge:
    """Each row within a relative bar.

    Args:
        bars: the bar of all rows, or one for each row [R].
        counted: bool [R], the rows that count; all when None.
    """

    def __init__(self, bars: float | Tensor = BAR, counted: Tensor | None = None) -> None:
        self.bars, self.counted = bars, counted

    def __call__(self, target: Tensor, expected: Tensor, baseline: Tensor | None = None, name: str = "") -> Finding:
        """See :class:`Judge`."""
        errors, left = row_errors(target, expected), 0
        if self.counted is not None:
            errors, left = torch.where(self.counted, errors, 0.0), int((~self.counted).sum())
        over = errors > self.bars
        worst = float(errors.max()) if len(errors) else 0.0
        if not over.any():
            apart = f"; {left} of {len(errors)} rows at a router's tie not counted" if left else ""
            return Finding(True, worst, None, f"relative error {worst:.1e}{apart}")
        row = int(over.nonzero()[0])
        bar = self.bars if isinstance(self.bars, float) else float(self.bars[row])
        words = f"relative error {worst:.1e}" if worst < torch.inf else "NaN, infinity or another shape"
        return Finding(False, worst, row, f"{words}, {int(over.sum())} of {len(over)} rows over {bar:.1e}")


class ThreeWayJudge:
    """What BF16 explains, see :mod:`vllm_neuron.accuracy.testing`, with the limits of blocks.

    Args:
        counted: bool [R], the rows that count; all when None.
        dtype: in which target and baseline were computed.
    """

    def __init__(self, counted: Tensor | None = None, dtype: torch.dtype = torch.bfloat16) -> None:
        self.counted, self.dtype = counted, dtype

    def __call__(self, target: Tensor, expected: Tensor, baseline: Tensor | None = None, name: str = "") -> Finding:
        """See :class:`Judge`.

        Raises:
            ValueError: no baseline.
        """
        if baseline is None:
            raise ValueError("a three-way comparison needs the baseline")
        if target.shape != expected.shape:
            return Finding(False, float("inf"), 0, f"shape {list(target.shape)}, expected {list(expected.shape)}")
        rows = torch.arange(len(expected))
        ours, gold, base = target, expected, baseline
        if self.counted is not None:
            rows = self.counted.nonzero().flatten()
            ours, gold, base = (x[rows] for x in (target, expected, baseline))
        found = compare_three_way(
            target=ours, expected=gold, baseline=base, name=name, dtype=self.dtype, limits=BLOCK_LIMITS
        )
        errors = row_errors(ours, gold)
        error = float(errors.max()) if len(errors) else 0.0
        if found.passed:
            return Finding(True, error, None, found.verdict, found)
        far = (errors > 3 * row_errors(base, gold).max()).nonzero().flatten()
        row = int(far[0]) if len(far) else int(errors.argmax())
        return Finding(False, error, int(rows[row]), found.verdict, found)
