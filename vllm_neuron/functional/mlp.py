"""The feed-forward block: gate and up products, activation, down product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_neuron.errors import OperationError, nearest
from vllm_neuron.functional.operation import operation
from vllm_neuron.functional.weight import Matrix, matmul

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.nn.functional.relu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The elementwise function of that name in a Hugging Face config.

    Raises:
        OperationError: unknown name; the nearest one is suggested.
    """
    if name not in ACTIVATIONS:
        raise OperationError("activation", name, "a known activation", nearest(name, ACTIVATIONS))
    return ACTIVATIONS[name]


@operation
def mlp(
    x_TH: Tensor,
    gate_up_HF: Matrix,
    down_IH: Matrix,
    *,
    act: str = "silu",
    gate_up_bias_F: Tensor | None = None,
    down_bias_H: Tensor | None = None,
) -> Tensor:
    """``down(act(gate(x)) * up(x))``, gate and up stored side by side.

    Args:
        x_TH: [T, H].
        gate_up_HF: [H, 2 * I], gate columns first.
        down_IH: [I, H].
        act: activation name as in a config.
        gate_up_bias_F, down_bias_H: [2 * I], [H] or None.

    Returns:
        [T, H]; a rank's part of the sum when I is sharded.
    """
    gate, up = matmul(x_TH, gate_up_HF, gate_up_bias_F).chunk(2, dim=-1)
    return matmul(activation(act)(gate) * up, down_IH, down_bias_H)
