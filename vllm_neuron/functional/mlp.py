"""The feed-forward block: gate and up products, activation, down product."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vllm_neuron.errors import OperationError, nearest
from vllm_neuron.functional.operation import operation
from vllm_neuron.functional.weight import Matrix, matmul


def _gelu_tanh(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


def _relu2(x: Tensor) -> Tensor:
    return torch.nn.functional.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _clipped_gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x).clamp(-10.0, 10.0)


def _laplace(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2.0))))


def _sqrt_softplus(x: Tensor) -> Tensor:
    return torch.nn.functional.softplus(x).sqrt()


def _identity(x: Tensor) -> Tensor:
    return x


# Names as in Hugging Face configs (transformers 5.19, activations.py): all that have no parameters. ``xielu`` has some,
# and is a module of the MLP block.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_python": torch.nn.functional.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_tanh": _gelu_tanh,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_10": _clipped_gelu,
    "quick_gelu": _quick_gelu,
    "relu": torch.nn.functional.relu,
    "relu2": _relu2,
    "relu_squared": _relu2,
    "relu6": torch.nn.functional.relu6,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "hardswish": torch.nn.functional.hardswish,
    "mish": torch.nn.functional.mish,
    "laplace": _laplace,
    "linear": _identity,
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": _sqrt_softplus,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The elementwise function of that name in a Hugging Face config.

    Raises:
        OperationError: unknown name; the nearest one is suggested.
    """
    if name not in ACTIVATIONS:
        raise OperationError("activation", name, "a known activation", nearest(name, ACTIVATIONS))
    return ACTIVATIONS[name]


def check_gate(operation: str, gated: bool, limit: float | None, alpha: float | None, up_shift: float) -> None:
    """Refuse options of a gate where there is none.

    Raises:
        OperationError: a clamp or a shift with ``gated=False``.
    """
    if not gated and (limit is not None or alpha is not None or up_shift):
        names = f"{operation}.clamp_limit, clamp_alpha, up_shift"
        raise OperationError(names, (limit, alpha, up_shift), "None, None and 0 where gated=False")


@operation
def mlp(
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
    """``down(act(gate(x)) * up(x))``, gate and up stored side by side; ``down(act(up(x)))`` when not ``gated``.

    Args:
        x_TH: [T, H].
        gate_up_HF: [H, 2 * I], gate columns first; [H, I] when not ``gated``.
        down_IH: [I, H].
        act: activation name as in a config.
        gate_up_bias_F, down_bias_H: [2 * I] or [I], [H], or None.
        gated: see above.
        clamp_limit: gate is cut above it and up on both sides, before the activation (gpt-oss).
        clamp_alpha: the activation is ``gate * sigmoid(clamp_alpha * gate)`` in place of ``act``.
        up_shift: added to up after the clamp.

    Returns:
        [T, H]; a rank's part of the sum when I is sharded.

    Raises:
        OperationError: an unknown activation, or a clamp or shift without a gate.
    """
    check_gate("mlp", gated, clamp_limit, clamp_alpha, up_shift)
    inner = matmul(x_TH, gate_up_HF, gate_up_bias_F)
    if not gated:
        return matmul(activation(act)(inner), down_IH, down_bias_H)
    gate, up = inner.chunk(2, dim=-1)
    if clamp_limit is not None:
        gate, up = gate.clamp(max=clamp_limit), up.clamp(-clamp_limit, clamp_limit)
    turned = activation(act)(gate) if clamp_alpha is None else gate * torch.sigmoid(clamp_alpha * gate)
    return matmul(turned * (up + up_shift if up_shift else up), down_IH, down_bias_H)
