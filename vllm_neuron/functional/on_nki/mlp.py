"""The feed-forward block on NKI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.mlp import check_gate, mlp
from vllm_neuron.functional.on_nki.limits import dense, first_no, grid, one_type, plain, room, shape, vector
from vllm_neuron.functional.operation import Support, no
from vllm_neuron.functional.weight import Matrix
from vllm_neuron.nki.kernels.mlp import mlp_kernel
from vllm_neuron.nki.wrap import wrap_nki

# Activation names of Hugging Face configs -> the kernel's.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "linear",
}


def _like_x(x: Tensor, **_: Any) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


MLP = wrap_nki(mlp_kernel, outputs=_like_x)


def _takes(
    x_TH: Tensor,
    gate_up_HF: Matrix,
    down_IH: Matrix,
    *,
    act: str = "silu",
    gate_up_bias_F: Tensor | None = None,
    down_bias_H: Tensor | None = None,
    gated: bool = True,
    clamp_limit: float | None = None,
    clamp_alpha: float | None = None,
    up_shift: float = 0.0,
) -> Support:
    answer = first_no(plain("gate_up_HF", gate_up_HF), plain("down_IH", down_IH))
    if not answer.ok:
        return answer
    if act not in ACTIVATIONS and (clamp_alpha is None or not gated):
        return no("act", act, f"one of {', '.join(ACTIVATIONS)}")
    if x_TH.ndim != 2:
        return no("x_TH.shape", tuple(x_TH.shape), "two dimensions, tokens and features")
    if clamp_limit is not None and clamp_limit < 0:
        return no("clamp_limit", clamp_limit, "None or a number of at least 0")
    hidden, inner = x_TH.shape[1], down_IH.shape[0]
    features = 2 * inner if gated else inner
    return first_no(
        one_type(
            "x_TH",
            x_TH,
            gate_up_HF=dense(gate_up_HF),
            down_IH=dense(down_IH),
            gate_up_bias_F=gate_up_bias_F,
            down_bias_H=down_bias_H,
        ),
        shape("gate_up_HF", dense(gate_up_HF), (hidden, features)),
        shape("down_IH", dense(down_IH), (inner, hidden)),
        vector("gate_up_bias_F", gate_up_bias_F, features),
        vector("down_bias_H", down_bias_H, hidden),
        room("H + I", (hidden, inner), x_TH.shape[0], x_TH.dtype),
    )


@mlp.kernel("nki.mlp", target="nki", supports=_takes)
def _mlp(
    x_TH: Tensor,
    gate_up_HF: Matrix,
    down_IH: Matrix,
    *,
    act: str = "silu",
    gate_up_bias_F: Tensor | None = None,
    down_bias_H: Tensor | None = None,
    gated: bool = True,
    clamp_limit: float | None = None,
    clamp_alpha: float | None = None,
    up_shift: float = 0.0,
) -> Tensor:
    check_gate("mlp", gated, clamp_limit, clamp_alpha, up_shift)
    return MLP[grid()](
        x_TH.contiguous(),
        dense(gate_up_HF),
        dense(down_IH),
        gate_up_bias_F,
        down_bias_H,
        ACTIVATIONS.get(act, act),
        gated,
        clamp_limit,
        clamp_alpha,
        up_shift,
    )
