"""Normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension.

    Args:
        size: D, the width that is normalised.
        eps: added to the mean square.
        plus_one: multiply by ``1 + weight`` (Gemma).
        dtype: of the weight; torch's default when None.
    """

    def __init__(self, size: int, *, eps: float, plus_one: bool = False, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps, self.plus_one = eps, plus_one

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return NF.rms_norm(x, self.weight, eps=self.eps, plus_one=self.plus_one)
