"""Operations on the public kernel library, tried before our own kernels where it is installed and takes the call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.on_nki.limits import dense, first_no, grid, one_type, plain
from vllm_neuron.functional.operation import YES, Support, no
from vllm_neuron.functional.projection import o_proj, qkv_proj
from vllm_neuron.functional.weight import Matrix
from vllm_neuron.nki import library
from vllm_neuron.nki.graphs import constant
from vllm_neuron.nki.library import PARTITIONS, LibraryCall
from vllm_neuron.nki.wrap import WrappedKernel, wrap_nki

HALVES = (torch.bfloat16, torch.float16)


def _installed(call: LibraryCall) -> Callable[[], Support]:
    @constant
    def answer() -> Support:
        problem = library.problem_of(call)
        return YES if problem is None else no(*problem)

    return answer


def _tokens_first(**given: Any) -> Any:
    tokens, width = given["input"].shape[1], given["fused_qkv_weights"].shape[1]
    return (1, tokens, width), given["input"].dtype


def _from_heads(**given: Any) -> Any:
    attention, width = given["attention"], given["weight"].shape[1]
    tokens = attention.shape[-1]
    return ((1, tokens, width) if attention.shape[0] == 1 else (tokens, width)), attention.dtype


@cache
def _wrapped(call: LibraryCall) -> WrappedKernel:
    return wrap_nki(call.load(), outputs=_tokens_first if call is library.QKV else _from_heads)


def _row(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.view(1, -1)


def _half(name: str, x: Tensor, weight_name: str, weight: Matrix, bias_name: str, bias: Tensor | None) -> Support:
    if x.dtype not in HALVES:
        return no(f"{name}.dtype", x.dtype, "bfloat16 or float16")
    answer = plain(weight_name, weight)
    return answer and one_type(name, x, **{weight_name: dense(weight), bias_name: bias})


def _takes_qkv(x_TH: Tensor, weight_HF: Matrix, bias_F: Tensor | None = None) -> Support:
    hidden, width = weight_HF.shape
    if hidden % PARTITIONS or hidden > 24576:
        return no("hidden size", hidden, "a multiple of 128, at most 24576")
    if width > min(4096, hidden):
        return no("weight_HF.shape[1]", width, f"at most {min(4096, hidden)}")
    return _half("x_TH", x_TH, "weight_HF", weight_HF, "bias_F", bias_F)


@qkv_proj.kernel("nkilib.qkv", target="nki", supports=_takes_qkv, installed=_installed(library.QKV), first=True)
def _qkv(x_TH: Tensor, weight_HF: Matrix, bias_F: Tensor | None = None) -> Tensor:
    types = importlib.import_module("nkilib.core.utils.common_types")
    out = _wrapped(library.QKV)[grid()](
        input=x_TH.contiguous()[None],
        fused_qkv_weights=dense(weight_HF),
        output_layout=types.QKVOutputLayout.BSD,
        bias=_row(bias_F),
    )
    return out[0]


def _blocks(x_TF: Tensor) -> Support:
    width = x_TF.shape[1]
    return YES if width % PARTITIONS == 0 else no("x_TF.shape[1]", width, "a multiple of 128")


def _takes_prefill(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Support:
    tokens, (width, hidden) = x_TF.shape[0], weight_FH.shape
    if not 512 <= tokens <= 131072:
        return no("tokens", tokens, "512 to 131072")
    if width > 17 * PARTITIONS:
        return no("x_TF.shape[1]", width, f"at most {17 * PARTITIONS}")
    if hidden % 2 or hidden > 20705:
        return no("hidden size", hidden, "an even number, at most 20705")
    return first_no(_blocks(x_TF), _half("x_TF", x_TF, "weight_FH", weight_FH, "bias_H", bias_H))


def _takes_decode(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Support:
    tokens, hidden = x_TF.shape[0], weight_FH.shape[1]
    if tokens > PARTITIONS:
        return no("tokens", tokens, f"at most {PARTITIONS}")
    if hidden % PARTITIONS:
        return no("hidden size", hidden, "a multiple of 128")
    return first_no(_blocks(x_TF), _half("x_TF", x_TF, "weight_FH", weight_FH, "bias_H", bias_H))


@o_proj.kernel(
    "nkilib.output_projection_cte",
    target="nki",
    supports=_takes_prefill,
    installed=_installed(library.O_PROJ_PREFILL),
    first=True,
)
def _o_proj_prefill(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Tensor:
    attention = x_TF.unflatten(1, (-1, PARTITIONS)).permute(1, 2, 0).contiguous()[None]
    return _wrapped(library.O_PROJ_PREFILL)[grid()](attention=attention, weight=dense(weight_FH), bias=_row(bias_H))[0]


@o_proj.kernel(
    "nkilib.output_projection_tkg",
    target="nki",
    supports=_takes_decode,
    installed=_installed(library.O_PROJ_DECODE),
    first=True,
)
def _o_proj_decode(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Tensor:
    attention = x_TF.unflatten(1, (-1, PARTITIONS)).permute(2, 1, 0).contiguous()[:, None]
    return _wrapped(library.O_PROJ_DECODE)[grid()](attention=attention, weight=dense(weight_FH), bias=_row(bias_H))
