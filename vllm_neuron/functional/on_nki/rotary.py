"""Rotary embedding on NKI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.on_nki.limits import grid, one_type, shape
from vllm_neuron.functional.operation import Support, no
from vllm_neuron.functional.rotary import rotary
from vllm_neuron.nki.kernels.rotary import TILE_BYTES, rotary_kernel
from vllm_neuron.nki.wrap import wrap_nki


def _like_x(x: Tensor, **_: Any) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


ROTARY = wrap_nki(rotary_kernel, outputs=_like_x)


def _takes(x_TND: Tensor, table_T2R: Tensor, *, interleaved: bool = False) -> Support:
    answer = one_type("x_TND", x_TND, table_T2R=table_T2R)
    if not answer.ok:
        return answer
    if x_TND.ndim != 3:
        return no("x_TND.shape", tuple(x_TND.shape), "three dimensions: tokens, heads, head size")
    size, width = x_TND.shape[-1], table_T2R.shape[-1]
    if width % 4:
        return no("table_T2R.shape[-1]", width, "a multiple of 4: cosines and sines of pairs")
    if width // 2 > size:
        return no("table_T2R.shape[-1]", width, f"at most {2 * size}, twice the head size")
    most = TILE_BYTES // x_TND.dtype.itemsize
    if size > most:
        return no("x_TND.shape[-1]", size, f"at most {most} in {x_TND.dtype}")
    return shape("table_T2R", table_T2R, (x_TND.shape[0], width))


@rotary.kernel("nki.rotary", target="nki", supports=_takes)
def _rotary(x_TND: Tensor, table_T2R: Tensor, *, interleaved: bool = False) -> Tensor:
    return ROTARY[grid()](x_TND.contiguous(), table_T2R.contiguous(), interleaved)
