"""Token embedding and output head, both sharded over the vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.nn.linear import Linear, as_group
from vllm_neuron.parallel import Group, get_tp_group
from vllm_neuron.utils.weight_loader import set_weight_loader, sharding_weight_loader


class VocabDimShardedEmbedding(nn.Module):
    """A token table whose rows are divided over the ranks; a ragged last shard is padded with zero rows.

    Args:
        vocab_size, embed_dim: V and H of the whole table.
        scale: factor on the rows, rounded to the table's dtype first, as transformers does (Gemma).
        dtype: torch's default when None.
        tp_group: the ranks; the current tensor-parallel group by default.

    Shapes: ids int64 [T] -> [T, H].
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        *,
        scale: float | None = None,
        dtype: torch.dtype | None = None,
        tp_group: Group | dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.group = as_group(tp_group)
        ranks = self.group.world_size
        self.scale = scale
        self.vocab_size_per_rank = -(-vocab_size // ranks)
        self.vocab_start_idx = self.group.rank * self.vocab_size_per_rank
        self.weight = nn.Parameter(torch.empty(self.vocab_size_per_rank, embed_dim, dtype=dtype), requires_grad=False)
        set_weight_loader(
            self.weight, sharding_weight_loader(0, self.vocab_size_per_rank, ranks, pad_shard=vocab_size % ranks != 0)
        )

    def forward(self, ids_T: Tensor) -> Tensor:
        """See the class."""
        rows = self._rows(ids_T)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)

    def _rows(self, ids_T: Tensor) -> Tensor:
        if self.group.world_size == 1:
            return NF.embedding(ids_T, self.weight)
        local = ids_T - self.vocab_start_idx
        mine = (local >= 0) & (local < self.vocab_size_per_rank)
        rows = NF.embedding(torch.where(mine, local, 0), self.weight)
        return self.group.all_reduce(rows * mine[:, None].to(rows.dtype))


class LMHead(Linear):
    """Hidden states to logits over the vocabulary, its rows divided over the ranks.

    Args:
        hidden_size, vocab_size: H and V of the whole head.
        bias: has a bias.
        softcap: logits become ``softcap * tanh(logit / softcap)``.
        multiplier: factor on the logits, before the soft cap.
        dtype: torch's default when None.

    Shapes: [R, H] -> float32 [R, V], the whole vocabulary on every rank, padding cut off.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        bias: bool = False,
        softcap: float | None = None,
        multiplier: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        group = get_tp_group()
        shard = -(-vocab_size // group.world_size)
        super().__init__(hidden_size, shard, bias, dtype)
        self.group, self.vocab_size, self.softcap, self.multiplier = group, vocab_size, softcap, multiplier
        ragged = vocab_size % group.world_size != 0
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                set_weight_loader(parameter, sharding_weight_loader(0, shard, group.world_size, pad_shard=ragged))

    def tie(self, embedding: VocabDimShardedEmbedding) -> None:
        """Share the embedding's table: no parameter of its own is left."""
        self.weight = embedding.weight

    def forward(self, x_RH: Tensor) -> Tensor:
        """See the class."""
        logits = self.group.all_gather(NF.linear(x_RH, self.matrix, self.bias), -1)[:, : self.vocab_size].float()
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
