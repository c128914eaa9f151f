"""Options of attention that have parameters of their own: positions as a bias, and queries that grow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.errors import ConfigError


@dataclass(frozen=True)
class QueryGrowth:
    """Queries times ``1 + beta * log(1 + floor((position + offset) / floor))``, after the rotary embedding.

    Attributes:
        floor: positions for which the factor stays the same.
        beta: strength.
        offset: 1 in Llama 4 (on layers without positions), 0 in Ministral 3 and Mistral 4.
    """

    floor: int
    beta: float
    offset: int = 1

    def __post_init__(self) -> None:
        if self.floor < 1:
            raise ConfigError("QueryGrowth: floor", self.floor, "1 or more positions")

    def __call__(self, positions_T: Tensor) -> Tensor:
        """float32 [T, 1, 1], the factor of each position."""
        steps = torch.floor((positions_T.float() + self.offset) / self.floor)
        return (1.0 + self.beta * torch.log1p(steps))[:, None, None]


@dataclass(frozen=True)
class Alibi:
    """Attention with linear biases (Press et al. 2021): scores fall with the distance, each head at its own slope.

    Attributes:
        max_bias: the slopes go down to ``2 ** -max_bias``.
        scale: factor on the bias (Falcon: the scale of the scores).
        rounded: slope, position and their product are rounded to bfloat16 and the bias is that of the key's position,
            not of the distance (Falcon).
    """

    max_bias: float = 8.0
    scale: float = 1.0
    rounded: bool = False

    def slopes(self, heads: int) -> Tensor:
        """float32 [heads], by the head's index in the whole layer.

        For a number that is no power of two: the slopes of the power below, then every other one of the power above.
        """
        below = 2 ** math.floor(math.log2(heads))
        powers = [self.max_bias / below * (i + 1) for i in range(below)]
        powers += [self.max_bias / (2 * below) * (2 * i + 1) for i in range(heads - below)]
        return torch.tensor([2.0**-power for power in powers], dtype=torch.float32)

    def bias(self, slopes_N: Tensor, keys_BS: Tensor, queries_BQ: Tensor) -> Tensor:
        """float32 [B, N, Q, S] to add to the scores; a constant along a row of keys changes nothing.

        Args:
            slopes_N: the slopes of this rank's heads.
            keys_BS, queries_BQ: positions.
        """
        if self.rounded:
            bias = slopes_N.bfloat16()[:, None] * keys_BS.bfloat16()[:, None]
            return (bias.float() * self.scale)[:, :, None].expand(-1, -1, queries_BQ.shape[1], -1)
        distance = (keys_BS[:, None] - queries_BQ[:, :, None]).float()
        return distance[:, None] * (slopes_N * self.scale)[:, None, None]
