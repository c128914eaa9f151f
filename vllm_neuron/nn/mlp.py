"""Feed-forward blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.nn.linear import GateUpLinear, RowParallelLinear


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
        partial = NF.mlp(
            x_TH,
            self.gate_up.matrix,
            self.down.matrix,
            act=self.act,
            gate_up_bias_F=self.gate_up.bias,
            down_bias_H=self.down.local_bias,
        )
        return self.down.reduce(partial)
