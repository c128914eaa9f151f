"""Teacher forcing inside vLLM: a logits processor that allows the given next token and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

NAME = "vllm_neuron.vllm.forcing:ForceIds"
KEY = "forced_ids"


class ForceIds(AdapterLogitsProcessor):
    """Forces the ids of ``SamplingParams.extra_args["forced_ids"]``, one after the other; without it, does nothing."""

    def is_argmax_invariant(self) -> bool:
        """It decides what is chosen."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[[list[int], Tensor], Tensor] | None:
        """A processor for one request, or None when nothing is forced."""
        forced = (params.extra_args or {}).get(KEY)
        if not forced:
            return None

        def force(output_ids: list[int], logits_V: Tensor) -> Tensor:
            if len(output_ids) >= len(forced):
                return logits_V
            only = torch.full_like(logits_V, float("-inf"))
            only[forced[len(output_ids)]] = 0.0
            return only

        return force
