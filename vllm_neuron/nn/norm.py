"""Normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError


def _parameter(size: int, wanted: bool, dtype: torch.dtype | None) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False) if wanted else None


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension.

    Args:
        size: D, the width that is normalised.
        eps: added to the mean square.
        plus_one: multiply by ``1 + weight`` (Gemma).
        weight: has a weight.
        dtype: of the weight; torch's default when None.

    Raises:
        ConfigError: ``plus_one`` without a weight.
    """

    def __init__(
        self,
        size: int,
        *,
        eps: float,
        plus_one: bool = False,
        weight: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if plus_one and not weight:
            raise ConfigError("RMSNorm: plus_one", plus_one, "False without a weight")
        self.weight = _parameter(size, weight, dtype)
        self.eps, self.plus_one = eps, plus_one

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return NF.rms_norm(x, self.weight, eps=self.eps, plus_one=self.plus_one)


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension.

    Args:
        size: D, the width that is normalised.
        eps: added to the variance.
        bias, weight: has them.
        plus_one: multiply by ``1 + weight`` (Nemotron).
        dtype: of the parameters; torch's default when None.

    Raises:
        ConfigError: ``plus_one`` or ``bias`` without a weight.
    """

    def __init__(
        self,
        size: int,
        *,
        eps: float,
        bias: bool = True,
        weight: bool = True,
        plus_one: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, on in (("plus_one", plus_one), ("bias", bias)):
            if on and not weight:
                raise ConfigError(f"LayerNorm: {name}", on, "False without a weight")
        self.weight, self.bias = _parameter(size, weight, dtype), _parameter(size, bias, dtype)
        self.eps, self.plus_one = eps, plus_one

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return NF.layer_norm(x, self.weight, self.bias, eps=self.eps, plus_one=self.plus_one)
