"""Inverse frequencies of the rotary kinds. Formulas as in transformers 5.19, modeling_rope_utils."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vllm_neuron.nn.rotary import RotaryConfig


def _periods(size: int, base: float, frequency_size: int | None = None) -> Tensor:
    """float32 [size/2], the positions in which each pair turns by one radian."""
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / (frequency_size or size)
    return base**exponents


def _plain(size: int, base: float, frequency_size: int | None = None) -> Tensor:
    return 1.0 / _periods(size, base, frequency_size)


def default(c: RotaryConfig) -> Tensor:
    """``base ** (-2 j / R)``; also ``dynamic`` inside its original context, which is all that a cache can serve."""
    return _plain(c.width, c.base)


def linear(c: RotaryConfig) -> Tensor:
    """All frequencies divided by the factor."""
    return _plain(c.width, c.base) / c.factor


def llama3(c: RotaryConfig) -> Tensor:
    """Low frequencies divided, high ones kept, a blend between."""
    inverse = _plain(c.width, c.base)
    low_wavelength = c.original_max_position / c.low_freq_factor
    high_wavelength = c.original_max_position / c.high_freq_factor
    wavelength = 2 * math.pi / inverse
    slow = torch.where(wavelength > low_wavelength, inverse / c.factor, inverse)
    smooth = (c.original_max_position / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)
    blended = (1 - smooth) * slow / c.factor + smooth * slow
    between = ~(wavelength < high_wavelength) & ~(wavelength > low_wavelength)
    return torch.where(between, blended, slow)


def yarn(c: RotaryConfig) -> Tensor:
    """Peng et al. 2023: interpolated below one number of turns in the original context, kept above another."""
    periods = _periods(c.width, c.base)

    def channel(turns: float) -> float:
        return (c.width * math.log(c.original_max_position / (turns * 2 * math.pi))) / (2 * math.log(c.base))

    low, high = channel(c.beta_fast), channel(c.beta_slow)
    if c.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, c.width - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(c.width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (c.factor * periods) * (1 - kept) + 1.0 / periods * kept


def longrope(c: RotaryConfig) -> Tensor:
    """Ding et al. 2024: a factor for each frequency, of the long list where the table passes the original context."""
    factors = c.long_factors if c.long else c.short_factors
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _periods(c.width, c.base))


def proportional(c: RotaryConfig) -> Tensor:
    """Exponents over the whole head; the channels past the rotary ones stand still (frequency 0)."""
    inverse = _plain(c.live, c.base, c.head_size)
    still = torch.zeros(c.head_size // 2 - len(inverse), dtype=torch.float32)
    return torch.cat((inverse, still)) / c.factor


KINDS: dict[str, Callable[[RotaryConfig], Tensor]] = {
    "default": default,
    "linear": linear,
    "dynamic": default,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "proportional": proportional,
}
