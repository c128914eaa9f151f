"""Feed-forward blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError
from vllm_neuron.nn.head_norm import HeadNorm, QKNorm
from vllm_neuron.nn.linear import ColumnParallelLinear, GateUpLinear, RowParallelLinear


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
        up_bias, down_bias: gate and up, or down, where they differ from ``bias``.
        clamp: limits of the product.
        down_norm: norm of the product over I, before the down projection (BitNet); parameter ``mid_norm``.
        dtype: of the parameters; torch's default when None.

    Shapes: x [T, H] -> [T, H].

    Raises:
        OperationError: an activation that is not known.
        ConfigError: ``clamp`` and ``down_norm`` at once, which no model has; a norm of heads in place of one over I.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        act: str,
        bias: bool = False,
        up_bias: bool | None = None,
        down_bias: bool | None = None,
        clamp: Clamp | None = None,
        down_norm: QKNorm | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        NF.activation(act)
        if down_norm is not None and clamp is not None:
            raise ConfigError("GatedMLP: down_norm", down_norm, "None beside a clamp")
        if down_norm is not None and down_norm.width != "full":
            raise ConfigError("GatedMLP: down_norm.width", down_norm.width, "full, over the whole intermediate size")
        self.act, self.clamp = act, clamp
        self.gate_up = GateUpLinear(hidden_size, intermediate_size, bias if up_bias is None else up_bias, dtype)
        self.down = RowParallelLinear(intermediate_size, hidden_size, bias if down_bias is None else down_bias, dtype)
        self.mid_norm: HeadNorm | None = None
        if down_norm is not None:
            self.mid_norm = HeadNorm(down_norm, self.down.in_features, 1, dtype=dtype)

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        return self.down.reduce(self._product(x_TH, self.down.local_bias))

    def partial(self, x_TH: Tensor) -> Tensor:
        """This rank's part of a sum that the caller takes over the ranks; each has an equal share of the bias."""
        bias = self.down.bias
        return self._product(x_TH, bias if bias is None or self.down.tp_size == 1 else bias / self.down.tp_size)

    def _product(self, x_TH: Tensor, down_bias_H: Tensor | None) -> Tensor:
        if self.mid_norm is not None:
            gate, up = NF.linear(x_TH, self.gate_up.matrix, self.gate_up.bias).chunk(2, dim=-1)
            inner = self.mid_norm((NF.activation(self.act)(gate) * up)[..., None])[..., 0]
            return NF.linear(inner, self.down.matrix, down_bias_H)
        clamp = self.clamp
        return NF.mlp(
            x_TH,
            self.gate_up.matrix,
            self.down.matrix,
            act=self.act,
            gate_up_bias_F=self.gate_up.bias,
            down_bias_H=down_bias_H,
            clamp_limit=None if clamp is None else clamp.limit,
            clamp_alpha=None if clamp is None else clamp.alpha,
            up_shift=0.0 if clamp is None else clamp.up_shift,
        )


class XIELU(nn.Module):
    """The activation xIELU (Huang et al. 2024), with four learned or stored numbers, whole on every rank.

    ``p x^2 + beta x`` above 0, ``n (expm1(min(x, eps)) - x) + beta x`` below, with ``p = softplus(alpha_p)`` and
    ``n = beta + softplus(alpha_n)``. Formula as in transformers 5.19, activations.py.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        for name, shape in (("alpha_p", (1,)), ("alpha_n", (1,)), ("beta", ()), ("eps", ())):
            setattr(self, name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        up = nn.functional.softplus(self.alpha_p)
        down = self.beta + nn.functional.softplus(self.alpha_n)
        below = (torch.expm1(torch.minimum(x, self.eps)) - x) * down
        return torch.where(x > 0, up * x * x, below) + self.beta * x


class MLP(nn.Module):
    """``down(act(up(x)))`` with the intermediate width divided over the ranks.

    Args:
        hidden_size, intermediate_size: H and I of the whole layer.
        act: activation name as in a Hugging Face config; ``xielu`` has parameters of its own (``act_fn``).
        up_bias, down_bias: the projections have biases.
        dtype: of the parameters; torch's default when None.

    Shapes: x [T, H] -> [T, H].
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        act: str,
        up_bias: bool = False,
        down_bias: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.act = act
        self.act_fn = XIELU(dtype) if act == "xielu" else None
        if self.act_fn is None:
            NF.activation(act)
        self.up = ColumnParallelLinear(hidden_size, intermediate_size, up_bias, dtype)
        self.down = RowParallelLinear(intermediate_size, hidden_size, down_bias, dtype)

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        return self.down.reduce(self._product(x_TH, self.down.local_bias))

    def partial(self, x_TH: Tensor) -> Tensor:
        """This rank's part of a sum that the caller takes over the ranks; each has an equal share of the bias."""
        bias = self.down.bias
        return self._product(x_TH, bias if bias is None or self.down.tp_size == 1 else bias / self.down.tp_size)

    def _product(self, x_TH: Tensor, down_bias_H: Tensor | None) -> Tensor:
        if self.act_fn is not None:
            inner = self.act_fn(NF.linear(x_TH, self.up.matrix, self.up.bias))
            return NF.linear(inner, self.down.matrix, down_bias_H)
        return NF.mlp(
            x_TH,
            self.up.matrix,
            self.down.matrix,
            act=self.act,
            gate_up_bias_F=self.up.bias,
            down_bias_H=down_bias_H,
            gated=False,
        )
