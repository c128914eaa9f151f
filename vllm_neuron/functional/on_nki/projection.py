"""Matrix products around attention, and the plain one, on NKI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.on_nki.limits import dense, first_no, grid, one_type, plain, room, shape, vector
from vllm_neuron.functional.operation import Support, no
from vllm_neuron.functional.projection import linear, o_proj, qkv_proj
from vllm_neuron.functional.weight import Matrix
from vllm_neuron.nki.kernels.linear import linear_kernel
from vllm_neuron.nki.kernels.o_proj import o_proj_kernel
from vllm_neuron.nki.kernels.qkv import qkv_kernel
from vllm_neuron.nki.wrap import wrap_nki


def _outputs(x: Tensor, w: Tensor, **_: Any) -> tuple[tuple[int, int], torch.dtype]:
    return (x.shape[0], w.shape[1]), x.dtype


LINEAR = wrap_nki(linear_kernel, outputs=_outputs)
QKV = wrap_nki(qkv_kernel, outputs=_outputs)
O_PROJ = wrap_nki(o_proj_kernel, outputs=_outputs)


def _product(names: tuple[str, str, str], x: Tensor, weight: Matrix, bias: Tensor | None) -> Support:
    x_name, weight_name, bias_name = names
    answer = plain(weight_name, weight)
    if not answer.ok:
        return answer
    if x.ndim != 2:
        return no(f"{x_name}.shape", tuple(x.shape), "two dimensions, tokens and features")
    width = weight.shape[1]
    return first_no(
        one_type(x_name, x, **{weight_name: dense(weight), bias_name: bias}),
        shape(weight_name, dense(weight), (x.shape[1], width)),
        vector(bias_name, bias, width),
        room(f"{x_name}.shape[-1]", (x.shape[-1],), x.shape[0], x.dtype),
    )


def _takes_linear(x_TH: Tensor, weight_HO: Matrix, bias_O: Tensor | None = None) -> Support:
    return _product(("x_TH", "weight_HO", "bias_O"), x_TH, weight_HO, bias_O)


def _takes_qkv(x_TH: Tensor, weight_HF: Matrix, bias_F: Tensor | None = None) -> Support:
    return _product(("x_TH", "weight_HF", "bias_F"), x_TH, weight_HF, bias_F)


def _takes_o(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Support:
    return _product(("x_TF", "weight_FH", "bias_H"), x_TF, weight_FH, bias_H)


@linear.kernel("nki.linear", target="nki", supports=_takes_linear)
def _linear(x_TH: Tensor, weight_HO: Matrix, bias_O: Tensor | None = None) -> Tensor:
    return LINEAR[grid()](x_TH.contiguous(), dense(weight_HO), bias_O)


@qkv_proj.kernel("nki.qkv", target="nki", supports=_takes_qkv)
def _qkv(x_TH: Tensor, weight_HF: Matrix, bias_F: Tensor | None = None) -> Tensor:
    return QKV[grid()](x_TH.contiguous(), dense(weight_HF), bias_F)


@o_proj.kernel("nki.o_proj", target="nki", supports=_takes_o)
def _o_proj(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Tensor:
    return O_PROJ[grid()](x_TF.contiguous(), dense(weight_FH), bias_H)
