"""Choosing tokens: vLLM's sampler on rank 0, its choice told to the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.sampler import Sampler
from vllm.v1.structured_output.utils import apply_grammar_bitmask
from vllm.v1.worker.gpu_input_batch import InputBatch

from vllm_neuron.parallel import Group


@dataclass(frozen=True)
class Choice:
    """What was sampled.

    Attributes:
        tokens: one id a row of the batch; rows that do not sample have one too, which is not used.
        logprobs: of those tokens, where a request asks for them (rank 0 only).
    """

    tokens: list[int]
    logprobs: LogprobsTensors | None


class RankZeroSampler:
    """vLLM's sampler, run by rank 0 so that ranks can't differ.

    Args:
        logprobs_mode: vLLM's ``logprobs_mode``.
        group: the tensor-parallel ranks.
    """

    def __init__(self, logprobs_mode: str, group: Group) -> None:
        self.sampler = Sampler(logprobs_mode=logprobs_mode)  # type: ignore[arg-type]
        self.group = group

    def choose(
        self,
        logits_BV: Tensor,
        batch: InputBatch,
        output: SchedulerOutput,
        grammar: GrammarOutput | None,
        idle: Sequence[int],
    ) -> Choice:
        """Pick a token for each row.

        Args:
            logits_BV: float32 [rows, V]; changed in place by grammars and penalties.
            batch: the persistent batch, its sampling metadata fresh.
            output: the scheduler step.
            grammar: bit masks of structured requests, or None.
            idle: rows that do not sample in this step (a prefill that is not done); their generators stay as they are.
        """
        rows = logits_BV.shape[0]
        chosen = torch.zeros(rows, dtype=torch.int64)
        logprobs = None
        if self.group.rank == 0:
            if grammar is not None:
                apply_grammar_bitmask(output, grammar, batch, logits_BV)
            with _untouched([batch.generators[row] for row in idle if row in batch.generators]):
                sampled = self.sampler(logits_BV, batch.sampling_metadata)
            chosen = sampled.sampled_token_ids[:, 0].to(torch.int64)
            logprobs = sampled.logprobs_tensors
        return Choice(self.group.broadcast(chosen).tolist(), logprobs)


@contextmanager
def _untouched(generators: Sequence[torch.Generator]) -> Iterator[None]:
    states = [generator.get_state() for generator in generators]
    yield
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


def rows_not_finite(logits_BV: Tensor) -> list[int]:
    """Rows with a NaN or an infinity: a finite row's sum is finite, so one pass tells."""
    bad = ~torch.isfinite(logits_BV.sum(dim=-1))
    return torch.nonzero(bad)[:, 0].tolist() if bool(bad.any()) else []
