"""Log probabilities of prompt tokens, collected over the chunks of a prefill."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from vllm_neuron.snapshot.label import Span

# Positions whose logits are held at a time: 64 rows of a 262,144-word vocabulary are 67 MB.
AT_ONCE = 64


class PromptLogprobs:
    """The requests that want them, and what they have so far.

    Args:
        sampler: vLLM's; its log-softmax and gather are used.
        logits: hidden states [R, H], and whose they are -> float32 logits [R, V]; a collective on all ranks.
        vocab_size: V, which the count -1 stands for.
        raw_logits: give logits in place of log probabilities (vLLM's ``logprobs_mode``).
    """

    def __init__(
        self, sampler: Sampler, logits: Callable[[Tensor, list[Span]], Tensor], vocab_size: int, *, raw_logits: bool
    ) -> None:
        self.sampler, self.logits, self.vocab_size, self.raw_logits = sampler, logits, vocab_size, raw_logits
        self.wanted: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def add(self, new: NewRequestData) -> None:
        """Note a new request when it asks for prompt log probabilities."""
        count = new.sampling_params.prompt_logprobs if new.sampling_params is not None else None
        if count is not None:
            self.wanted[new.req_id] = self.vocab_size if count == -1 else count

    def drop(self, request: str) -> None:
        """Forget a request that finished."""
        self.wanted.pop(request, None)

    def collect(self, state: CachedRequestState, hidden_QH: Tensor) -> LogprobsTensors | None:
        """Take in a chunk's hidden states; the whole prompt's tensors when this chunk completes it.

        Args:
            state: the request, ``num_computed_tokens`` before this chunk.
            hidden_QH: [tokens of the chunk, H].
        """
        count = self.wanted.get(state.req_id)
        if count is None or state.prompt_token_ids is None:
            return None
        prompt = state.prompt_token_ids
        whole = state.in_progress_prompt_logprobs_cpu
        if whole is None:
            whole = LogprobsTensors.empty_cpu(len(prompt) - 1, count + 1)
            state.in_progress_prompt_logprobs_cpu = whole
        start = state.num_computed_tokens
        rows = min(hidden_QH.shape[0], len(prompt) - 1 - start)
        for first in range(0, rows, AT_ONCE):
            last = min(first + AT_ONCE, rows)
            logits = self.logits(hidden_QH[first:last], [Span(state.req_id, 0, last - first, start + first)])
            self._fill(whole, start + first, logits, prompt[start + 1 + first : start + 1 + last], count)
        if start + hidden_QH.shape[0] < len(prompt):
            return None
        del self.wanted[state.req_id]
        state.in_progress_prompt_logprobs_cpu = None
        return whole

    def _fill(self, whole: LogprobsTensors, start: int, logits: Tensor, targets: list[int], count: int) -> None:
        scores = logits if self.raw_logits else self.sampler.compute_logprobs(logits)
        found = self.sampler.gather_logprobs(scores, count, torch.tensor(targets, dtype=torch.int64))
        part = slice(start, start + len(targets))
        whole.logprob_token_ids[part].copy_(found.logprob_token_ids)
        whole.logprobs[part].copy_(found.logprobs)
        whole.selected_token_ranks[part].copy_(found.selected_token_ranks)
