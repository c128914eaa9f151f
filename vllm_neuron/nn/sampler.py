"""Greedy choice on the ranks' own vocabulary shards, without gathering the logits.

Everything beyond greedy (temperature, top-k and top-p, penalties, seeds, grammars) is vLLM's own sampler's work, in the
runtime room.
"""

from __future__ import annotations

from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.parallel import Group, get_tp_group


class Sampler(nn.Module):
    """Argmax over a vocabulary that is divided over the ranks.

    Args:
        vocab_size: V; columns past it are padding and never win.
        process_group: the ranks; the current tensor-parallel group by default.

    Shapes: logits [B, ceil(V / ranks)] -> int64 [B], the same on all ranks.
    """

    def __init__(self, vocab_size: int, process_group: Group | None = None) -> None:
        super().__init__()
        self.group = process_group or get_tp_group()
        self.vocab_size = vocab_size
        self.shard = -(-vocab_size // self.group.world_size)

    def forward(self, logits_BV: Tensor) -> Tensor:
        """See the class."""
        offset = self.group.rank * self.shard
        own = max(0, min(self.shard, self.vocab_size - offset))
        if own < self.shard:
            logits_BV = logits_BV.clone()
            logits_BV[:, own:] = float("-inf")
        return NF.argmax(logits_BV, offset=offset, group=self.group)
