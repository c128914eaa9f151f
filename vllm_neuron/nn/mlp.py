"""Feed-forward blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.nn.linear import GateUpLinear, RowParallelLinear


@dataclass(frozen=True)
class Clamp:
    """Limits of a gated product.

    Attributes:
        limit: gate is cut above it, up on both sides.
        alpha: the activation is ``gate * sigmoid(alpha * gate)`` in place of the named one.
        up_shift: added to up after the limits.
    """

    limit: float
    alpha: float | None = None
    up_shift: float = 0.0


class GatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))`` with the intermediate width divided over the ranks.

    Args:
        hidden_size, intermediate_size: H and I of the whole layer.
        act: activation name as in a Hugging Face config.
        bias: all three projections have a bias.
        dtype: of the parameters; torch's default when None.

    Shapes: x [T, H] -> [T, H].
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        act: str,
        bias: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        NF.activation(act)
        self.act = act
        self.gate_up = GateUpLinear(hidden_size, intermediate_size, bias, dtype)
        self.down = RowParallelLinear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        return self.down.reduce(self._product(x_TH, self.down.local_bias))

    def partial(self, x_TH: Tensor) -> Tensor:
        """This rank's part of a sum that the caller takes over the ranks; each has an equal share of the bias."""
        bias = self.down.bias
        return self._product(x_TH, bias if bias is None or self.down.tp_size == 1 else bias / self.down.tp_size)

    def _product(self, x_TH: Tensor, down_bias_H: Tensor | None) -> Tensor:
        return NF.mlp(
            x_TH,
            self.gate_up.matrix,
            self.down.matrix,
            act=self.act,
            gate_up_bias_F=self.gate_up.bias,
            down_bias_H=down_bias_H,
        )
