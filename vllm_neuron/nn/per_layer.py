"""Embeddings that every layer gets of its own, beside the residual (Gemma 3n and 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.nn.embedding import VocabDimShardedEmbedding
from vllm_neuron.nn.linear import ReplicatedLinear
from vllm_neuron.nn.norm import RMSNorm


class PerLayerEmbedding(nn.Module):
    """For each token and layer a vector: from a table, and from the embedded token by a projection and a norm.

    ``(norm(projection(x) / sqrt(H)) + table(ids) * sqrt(P)) / sqrt(2)``. The table's rows are divided over the ranks,
    the projection is whole on every rank. Formula as in transformers 5.19, models/gemma4.

    Args:
        vocab_size: rows of the table.
        layers, size: L layers, P elements each.
        hidden_size: H.
        eps: of the norm.
        dtype: torch's default when None.

    Shapes: ids int64 [T], x [T, H] -> [T, L, P].
    """

    def __init__(
        self,
        vocab_size: int,
        layers: int,
        size: int,
        hidden_size: int,
        *,
        eps: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.table = VocabDimShardedEmbedding(vocab_size, layers * size, scale=size**0.5, dtype=dtype)
        self.projection = ReplicatedLinear(hidden_size, layers * size, dtype=dtype)
        self.norm = RMSNorm(size, eps=eps, dtype=dtype)
        self.layers, self.size, self.factor = layers, size, hidden_size**-0.5

    def forward(self, ids_T: Tensor, x_TH: Tensor) -> Tensor:
        """See the class."""
        shape = (self.layers, self.size)
        projected = self.norm((self.projection(x_TH) * self.factor).unflatten(-1, shape))
        return (projected + self.table(ids_T).unflatten(-1, shape)) * 2.0**-0.5


class PerLayerInput(nn.Module):
    """What a layer adds to the residual from its own embedding: ``norm(projection(act(gate(x)) * input))``.

    Whole on every rank: P is small.

    Args:
        hidden_size: H.
        size: P.
        act: activation name as in a Hugging Face config.
        eps: of the norm.
        dtype: torch's default when None.

    Shapes: x [T, H], input [T, P] -> [T, H].
    """

    def __init__(self, hidden_size: int, size: int, *, act: str, eps: float, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.act = NF.activation(act)
        self.gate = ReplicatedLinear(hidden_size, size, dtype=dtype)
        self.projection = ReplicatedLinear(size, hidden_size, dtype=dtype)
        self.norm = RMSNorm(hidden_size, eps=eps, dtype=dtype)

    def forward(self, x_TH: Tensor, input_TP: Tensor) -> Tensor:
        """See the class."""
        return self.norm(self.projection(self.act(self.gate(x_TH)) * input_TP))
