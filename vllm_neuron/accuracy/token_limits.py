"""The limits of level 2, with their reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vllm_neuron.accuracy.testing import LIMITS, Limits


@dataclass(frozen=True)
class TokenLimits:
    """What teacher-forced logits have to keep.

    All logits of a prompt, and of all prompts, stand under the three-way limits of :mod:`vllm_neuron.accuracy.testing`.
    But the logits of one position are a few hundred hidden numbers seen through the head, so their errors move
    together: the number of independent samples is that of the positions, not of the logits. Between two correct bf16
    runs of the same model (SmolLM2 135M and Gemma 3 270M, eager against fused attention, 370 positions each) the error
    of one position over the other run's has a log-normal spread of 0.25 to 0.8, up to a factor of 7 either way, while
    the mean over 32 positions stays within 0.8 to 1.2. From that:

    Attributes:
        comparison: limits of the pooled comparison.
        noise: factor on the baseline's noise that is let pass, the one behind a Bhattacharyya coefficient of 0.99. A
            prompt's pooled error may exceed it by what chance does to so few positions: three standard errors of the
            mean log ratio.
        spread: least standard deviation of that log ratio that is assumed; a few positions can't show their spread.
        segment: positions of a stretch whose mean log ratio is tested by itself, so that a fault that begins half-way
            (a window, a cache) is not diluted. Four standard errors, since there are many stretches.
        row_ratio: one position's error, rms or worst, over the baseline's at this position or the baseline's median
            one, whichever is larger; twice the largest ratio seen between correct runs.
        near_tie_ulps: the highest tokens of gold and target differ, and their gold logits are at most so many units in
            the last place of the target's dtype apart, at their size: each of the two may be off by one rounding. One
            step of bf16 is 0.125 for logits in [16, 32) and 0.25 in [32, 64); a fixed tolerance would be wrong.
        tie_deviations: or their distance is at most so many standard deviations of what this position's error does to
            a difference of two logits (sqrt(2) rms): the target's own error, or the baseline's if that is larger, but
            at most twice the baseline's. Correct runs of the two models reach 1.5; 72,000 positions of synthetic ones
            with few hidden numbers, where the highest logits err most, reach 3.7.
        exact_rtol: for a float32 target, the relative error that is let pass in place of what BF16 explains. Correct
            float32 runs differ by 1e-6 to 4e-6; the smallest real fault that is worth a name gives 1e-3.
        top_k: tokens kept and compared at each position.
    """

    comparison: Limits = LIMITS
    noise: float = 1.22
    spread: float = 0.5
    segment: int = 32
    row_ratio: float = 8.0
    near_tie_ulps: float = 2.0
    tie_deviations: float = 4.0
    exact_rtol: float = 1e-4
    top_k: int = 5

    def noise_limit(self, log_ratios: Sequence[float]) -> float:
        """Largest pooled rms ratio that chance explains for these positions."""
        return self.noise * math.exp(3 * self._error(log_ratios))

    def excess(self, log_ratios: Sequence[float]) -> float | None:
        """The mean ratio of a stretch, when it is larger than chance explains; else None."""
        mean = sum(log_ratios) / len(log_ratios)
        over = mean - 4 * self._error(log_ratios) > math.log(self.noise)
        return math.exp(mean) if over else None

    def _error(self, log_ratios: Sequence[float]) -> float:
        values = torch.tensor(log_ratios, dtype=torch.float64)
        spread = float(values.std()) if len(values) > 1 else 0.0
        return max(spread, self.spread) / math.sqrt(len(values))


TOKEN_LIMITS = TokenLimits()
