"""Root-mean-square norm on NKI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.norm import rms_norm
from vllm_neuron.functional.on_nki.limits import grid, one_type, vector
from vllm_neuron.functional.operation import Support, no
from vllm_neuron.nki.kernels.rmsnorm import rmsnorm_kernel, rmsnorm_residual_kernel
from vllm_neuron.nki.wrap import wrap_nki

# Bytes a partition for rows, results and weights in flight.
ROW_BYTES = 170 * 1024


def _like_x(x: Tensor, **_: Any) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


def _two_like_x(x: Tensor, **_: Any) -> list[tuple[torch.Size, torch.dtype]]:
    return [(x.shape, x.dtype)] * 2


RMS_NORM = wrap_nki(rmsnorm_kernel, outputs=_like_x)
RMS_NORM_RESIDUAL = wrap_nki(rmsnorm_residual_kernel, outputs=_two_like_x)


def _takes(x: Tensor, weight_D: Tensor | None, *, eps: float, plus_one: bool = False) -> Support:
    answer = one_type("x", x, weight_D=weight_D)
    if not answer.ok:
        return answer
    size = x.shape[-1]
    # Two tiles of rows and of results, one of weights; in float32 the product and the shifted weight besides.
    bytes_each = 5 * x.dtype.itemsize + (8 if plus_one else 0)
    if size * bytes_each > ROW_BYTES:
        return no("x.shape[-1]", size, f"at most {ROW_BYTES // bytes_each} in {x.dtype}")
    return vector("weight_D", weight_D, size)


@rms_norm.kernel("nki.rmsnorm", target="nki", supports=_takes)
def _rms_norm(x: Tensor, weight_D: Tensor | None, *, eps: float, plus_one: bool = False) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return RMS_NORM[grid()](rows, weight_D, eps, plus_one).view(x.shape)
