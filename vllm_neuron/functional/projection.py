"""Matrix products around attention and the head: one operation for each, since each has its own kernel on a device."""

from __future__ import annotations

from torch import Tensor

from vllm_neuron.functional.operation import operation
from vllm_neuron.functional.weight import Matrix, matmul


@operation
def linear(x_TH: Tensor, weight_HO: Matrix, bias_O: Tensor | None = None) -> Tensor:
    """``x [T, H] @ weight [H, O] + bias [O]`` -> [T, O]."""
    return matmul(x_TH, weight_HO, bias_O)


@operation
def qkv_proj(x_TH: Tensor, weight_HF: Matrix, bias_F: Tensor | None = None) -> Tensor:
    """Queries, keys and values of a rank in one product.

    Args:
        x_TH: [T, H].
        weight_HF: [H, F], F = N * D + K * D + K * E, in the order q, k, v.
        bias_F: [F] or None.

    Returns:
        [T, F].
    """
    return matmul(x_TH, weight_HF, bias_F)


@operation
def o_proj(x_TF: Tensor, weight_FH: Matrix, bias_H: Tensor | None = None) -> Tensor:
    """Output projection of attention: [T, N * E] @ [N * E, H] + [H] -> [T, H]; a rank's part of the sum."""
    return matmul(x_TF, weight_FH, bias_H)
