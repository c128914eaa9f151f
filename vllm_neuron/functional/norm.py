"""Root-mean-square normalisation (Zhang and Sennrich 2019) and layer normalisation (Ba et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.functional.operation import operation


@operation
def rms_norm(x: Tensor, weight_D: Tensor | None, *, eps: float, plus_one: bool = False) -> Tensor:
    """``x / sqrt(mean(x^2) + eps)`` over the last dimension, times the weight.

    Args:
        x: [..., D].
        weight_D: [D], or None for no weight.
        eps: added to the mean square.
        plus_one: multiply by ``1 + weight`` in float32 before the cast back (Gemma); else cast first (Llama).

    Returns:
        [..., D] in x's dtype; the mean square is taken in float32.
    """
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    if weight_D is None:
        return normed.to(x.dtype)
    if plus_one:
        return (normed * (1.0 + weight_D.float())).to(x.dtype)
    return weight_D * normed.to(x.dtype)


@operation(compiler="few served models have it; the compiler fuses its elementwise passes")
def layer_norm(
    x: Tensor, weight_D: Tensor | None, bias_D: Tensor | None = None, *, eps: float, plus_one: bool = False
) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` over the last dimension, times the weight, plus the bias.

    Args:
        x: [..., D].
        weight_D, bias_D: [D], or None.
        eps: added to the variance.
        plus_one: multiply by ``1 + weight`` (Nemotron).

    Returns:
        [..., D] in x's dtype; statistics are taken in float32.
    """
    weight = None if weight_D is None else weight_D.float() + (1.0 if plus_one else 0.0)
    bias = None if bias_D is None else bias_D.float()
    return torch.nn.functional.layer_norm(x.float(), (x.shape[-1],), weight, bias, eps).to(x.dtype)
