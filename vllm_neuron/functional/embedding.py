"""Table look-up and the choice of the largest logit, whole or over vocabulary shards."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.functional.operation import operation
from vllm_neuron.parallel import Group, get_tp_group


@operation(compiler="a gather of rows is one DMA for each token, which the compiler emits as well as a kernel would")
def embedding(ids_T: Tensor, weight_VH: Tensor) -> Tensor:
    """Rows of ``weight_VH`` [V, H] at ``ids_T`` int64 [T] -> [T, H]."""
    return torch.nn.functional.embedding(ids_T, weight_VH)


@operation
def argmax(logits_BV: Tensor, *, offset: int = 0, group: Group | None = None) -> Tensor:
    """Index of the largest logit of each row, over the vocabulary shards of all ranks; the lowest index wins a tie.

    Args:
        logits_BV: [B, V / ranks], this rank's shard.
        offset: vocabulary index of this shard's first column.
        group: the ranks that share the vocabulary; the current TP group by default.

    Returns:
        int64 [B], the same on all ranks.
    """
    group = group or get_tp_group()
    best_B, index_B = logits_BV.float().max(dim=-1)
    return best_of_ranks(best_B, index_B + offset, group)


def best_of_ranks(best_B: Tensor, index_B: Tensor, group: Group) -> Tensor:
    """Of each rank's largest logit [B] and its index [B] the index of the largest, the lowest of a tie; int64 [B]."""
    if group.world_size == 1:
        return index_B
    values_RB = group.all_gather(best_B[None], 0)
    indices_RB = group.all_gather(index_B[None], 0)
    winner = values_RB.max(dim=0).values
    none = torch.iinfo(indices_RB.dtype).max
    return torch.where(values_RB == winner, indices_RB, none).min(dim=0).values


@operation
def topk(logits_BV: Tensor, k: int, *, offset: int = 0, group: Group | None = None) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row and their vocabulary indices, over the shards of all ranks.

    Args:
        logits_BV: [B, V / ranks], this rank's shard; V / ranks >= k.
        k: how many.
        offset, group: as in :func:`argmax`.

    Returns:
        float32 [B, k] in falling order and int64 [B, k], the same on all ranks.
    """
    group = group or get_tp_group()
    values_BK, indices_BK = logits_BV.float().topk(k, dim=-1)
    return topk_of_ranks(values_BK, indices_BK + offset, group)


def topk_of_ranks(values_BK: Tensor, indices_BK: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Of each rank's K largest logits [B, K] and their indices [B, K] the K largest in falling order."""
    if group.world_size == 1:
        return values_BK, indices_BK
    values = group.all_gather(values_BK, -1)
    indices = group.all_gather(indices_BK, -1)
    best, place = values.topk(values_BK.shape[-1], dim=-1)
    return best, indices.gather(-1, place)
