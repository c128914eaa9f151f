"""Positions that are added to the embedding: a learned table, or sines and cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError


class LearnedPositions(nn.Module):
    """A learned row for each position, whole on every rank.

    Args:
        rows: rows of the table, those before ``offset`` included.
        size: H.
        offset: rows that are skipped at the start (OPT has two).
        dtype: of the table; torch's default when None.

    Shapes: positions int64 [T] -> [T, H].
    """

    def __init__(self, rows: int, size: int, *, offset: int = 0, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, size, dtype=dtype), requires_grad=False)
        self.offset = offset

    def forward(self, positions_T: Tensor) -> Tensor:
        """See the class."""
        return NF.embedding(positions_T + self.offset, self.weight)


class SinusoidalPositions(nn.Module):
    """H/2 sines, then H/2 cosines, of ``(position + offset) * base ** (-2 j / frequency_size)``.

    The angles are taken in float32 and the result is cast at the end.

    Args:
        size: H, even.
        base: of the frequencies.
        frequency_size: what the exponents are divided by; H by default (``H - 2`` in fairseq's models).
        offset: added to the position.
        dtype: of the result; torch's default when None.

    Shapes: positions int64 [T] -> [T, H].

    Raises:
        ConfigError: an odd size.
    """

    def __init__(
        self,
        size: int,
        *,
        base: float = 10000.0,
        frequency_size: int | None = None,
        offset: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size % 2:
            raise ConfigError("SinusoidalPositions: size", size, "an even number")
        self.offset, self.dtype = offset, dtype or torch.get_default_dtype()
        self.size, self.step = size, -2.0 * math.log(base) / (size if frequency_size is None else frequency_size)

    def forward(self, positions_T: Tensor) -> Tensor:
        """See the class."""
        steps = torch.arange(self.size // 2, dtype=torch.float32, device=positions_T.device)
        angles = (positions_T + self.offset).float()[:, None] * torch.exp(steps * self.step)
        return torch.cat((angles.sin(), angles.cos()), dim=-1).to(self.dtype)
