"""Experts beside a dense MLP, each with norms of its own (Gemma 4 26B-A4B)."""

from __future__ import annotations

from torch import Tensor, nn

from vllm_neuron.nn.mlp import MLP, GatedMLP
from vllm_neuron.nn.moe import MoE
from vllm_neuron.nn.norm import LayerNorm, RMSNorm


class MoEBesideMLP(nn.Module):
    """``post_dense_norm(mlp(x)) + post_moe_norm(moe(pre_moe_norm(r)))``, x being the normed residual r.

    The router reads r itself, without ``pre_moe_norm``: what it normalises is in its ``RouterConfig``. Each half is
    summed over the ranks before its norm. Formula as in transformers 5.19, models/gemma4.

    Args:
        mlp: the dense half.
        moe: the experts.
        post_dense_norm, pre_moe_norm, post_moe_norm: over H.

    Shapes: x [T, H], r [T, H] -> [T, H].
    """

    def __init__(
        self,
        mlp: GatedMLP | MLP,
        moe: MoE,
        *,
        post_dense_norm: RMSNorm | LayerNorm,
        pre_moe_norm: RMSNorm | LayerNorm,
        post_moe_norm: RMSNorm | LayerNorm,
    ) -> None:
        super().__init__()
        self.mlp, self.moe = mlp, moe
        self.post_dense_norm, self.pre_moe_norm, self.post_moe_norm = post_dense_norm, pre_moe_norm, post_moe_norm

    def forward(self, x_TH: Tensor, residual_TH: Tensor) -> Tensor:
        """See the class."""
        dense_TH: Tensor = self.post_dense_norm(self.mlp(x_TH))
        experts_TH: Tensor = self.post_moe_norm(self.moe(self.pre_moe_norm(residual_TH), residual_TH))
        return dense_TH + experts_TH
