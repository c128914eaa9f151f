"""Runs the model for a scheduler step: static steps in, sampled tokens out."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsTensors, ModelRunnerOutput
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.worker.gpu_input_batch import InputBatch

from vllm_neuron import metrics
from vllm_neuron.errors import NonFiniteError, ShapeError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.kv_cache import KVBinding
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.snapshot.label import Span
from vllm_neuron.step import Phase
from vllm_neuron.vllm.adapter import Adapter
from vllm_neuron.vllm.worker import kv
from vllm_neuron.vllm.worker.buckets import Buckets, Shape, plan
from vllm_neuron.vllm.worker.inputs import Batch, StepBuilder, Work
from vllm_neuron.vllm.worker.prompt_logprobs import PromptLogprobs
from vllm_neuron.vllm.worker.requests import Requests
from vllm_neuron.vllm.worker.sampling import RankZeroSampler, rows_not_finite
from vllm_neuron.vllm.worker.warmup import empty_work
from vllm_neuron.vllm.worker.watch import Watch, cut

logger = logging.getLogger(__name__)


@dataclass
class _Pending:
    """A forward that waits for its tokens to be chosen."""

    output: SchedulerOutput
    logits_BV: Tensor
    idle: list[int]
    broken: list[int]
    prompt_logprobs: dict[str, LogprobsTensors | None]


class NeuronModelRunner:
    """Owns the model's caches, the persistent batch, and the static shapes.

    Args:
        vllm_config: vLLM's configuration.
        config: the plugin's own.
        adapter: where it runs.
        model: loaded and prepared.
    """

    def __init__(self, vllm_config: VllmConfig, config: NeuronConfig, adapter: Adapter, model: NeuronModel) -> None:
        self.vllm_config, self.config, self.adapter = vllm_config, config, adapter
        self.model = model
        self.spec = model.get_kv_spec()
        self.sampler = RankZeroSampler(vllm_config.model_config.logprobs_mode, get_tp_group())
        self.prompt_logprobs = PromptLogprobs(
            self.sampler.sampler,
            self._logits,
            model.vocab_size,
            raw_logits="logits" in vllm_config.model_config.logprobs_mode,
        )
        self.watch = Watch(model)
        self.visited: set[Shape] = set()
        self.warm = False
        self._pending: _Pending | None = None

    # -- set-up ---------------------------------------------------------------------------------------------------

    def initialize_kv_cache(self, config: KVCacheConfig) -> None:
        """Allocate the cache as vLLM laid it out, and everything whose size follows from it."""
        self.bindings: dict[str, KVBinding] = kv.allocate(config, self.spec, self.adapter.device)
        self.model.bind_kv_cache(self.bindings)
        groups = kv.group_shapes(config, self.spec)
        limits, model = self.vllm_config.scheduler_config, self.vllm_config.model_config
        self.buckets: Buckets = plan(
            self.config,
            max_tokens=limits.max_num_batched_tokens,
            max_rows=limits.max_num_seqs,
            max_model_len=model.max_model_len,
            block_sizes=[g.block_size for g in groups],
        )
        self.builder = StepBuilder(self.buckets, groups)
        self.requests = Requests(self._input_batch(list({g.table: g for g in groups}.values())))

    def _input_batch(self, groups: list[kv.GroupShape]) -> InputBatch:
        limits, model = self.vllm_config.scheduler_config, self.vllm_config.model_config
        blocks = [-(-max(model.max_model_len, self.buckets.context[-1]) // g.block_size) for g in groups]
        processors = build_logitsprocs(
            self.vllm_config, self.adapter.device, False, False, tuple(model.logits_processors or ())
        )
        return InputBatch(
            max_num_reqs=limits.max_num_seqs,
            max_model_len=model.max_model_len,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            device=self.adapter.device,
            vocab_size=self.model.vocab_size,
            block_sizes=[g.block_size for g in groups],
            max_num_blocks_per_req=blocks,
            logitsprocs=processors,
            logitsprocs_need_output_token_ids=bool(model.logits_processors),
        )

    def warm_up(self) -> float:
        """Visit every shape; seconds.

        Where each shape is a compiled graph every one is run. Where code runs as it is, the smallest of each phase is
        run and the others are noted, which is said in the log.
        """
        begin = time.perf_counter()
        shapes = self.buckets.shapes()
        compiled = self.adapter.needs_full_warmup or self.config.compile_layers
        every = self.config.warmup == "all" or (self.config.warmup == "auto" and compiled)
        smallest = {shape.phase: shape for shape in reversed(shapes)}
        run = shapes if every else list(smallest.values())
        longest = self.vllm_config.model_config.max_model_len
        for shape in run:
            self._forward(empty_work(self.builder, shape, longest))
        for rows in self.buckets.rows if every else self.buckets.rows[:1]:
            self.model.compute_logits(torch.zeros(rows, self.hidden_size, dtype=self.dtype))
        self.visited.update(shapes)
        self.warm = True
        self.watch.warmed_up()
        seconds = time.perf_counter() - begin
        logger.info("Warm-up: %d of %d shapes run, %.1f s", len(run), len(shapes), seconds)
        return seconds

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        found = self.vllm_config.model_config.dtype
        assert isinstance(found, torch.dtype), "vLLM resolves the dtype before it starts a worker"
        return found

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.vllm_config.model_config.get_hidden_size()

    # -- a step ---------------------------------------------------------------------------------------------------

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run the forwards of a scheduler step; the tokens are chosen in :meth:`sample_tokens`.

        Returns:
            None when tokens are to be chosen, or the empty output when nothing was scheduled.
        """
        for request in output.finished_req_ids:
            self.prompt_logprobs.drop(request)
        for new in output.scheduled_new_reqs:
            self.prompt_logprobs.add(new)
        self._maintain_blocks(output)
        self.requests.update(output)
        if not output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        batch = self._batch(output)
        last_RH: list[tuple[tuple[int, ...], Tensor]] = []
        prompt_logprobs: dict[str, LogprobsTensors | None] = {}
        for work in self.builder.build(batch):
            for piece, hidden_TH in self._isolated(batch, work):
                if self.prompt_logprobs:
                    self._collect_prompt_logprobs(piece, hidden_TH, prompt_logprobs)
                last_RH.append((piece.rows, _last(piece, hidden_TH)))
        logits_BV = self._row_logits(last_RH, batch)
        self.watch.flush()
        done = batch.computed + batch.scheduled >= self.requests.batch.num_tokens_no_spec[: len(batch.computed)]
        self._pending = _Pending(
            output, logits_BV, np.flatnonzero(~done).tolist(), rows_not_finite(logits_BV), prompt_logprobs
        )
        return None

    def _maintain_blocks(self, output: SchedulerOutput) -> None:
        for block in output.new_block_ids_to_zero or ():
            for binding in self.bindings.values():
                binding.pages[block] = 0
        for source, target in output.kv_cache_block_copies or ():
            for binding in self.bindings.values():
                binding.pages[target] = binding.pages[source]

    def _batch(self, output: SchedulerOutput) -> Batch:
        batch = self.requests.batch
        rows = batch.num_reqs
        counts = output.num_scheduled_tokens
        scheduled = np.fromiter((counts[request] for request in batch.req_ids), np.int32, rows)
        tables = [batch.block_table[g.table].get_numpy_array()[:rows] for g in self.builder.groups]
        return Batch(batch.token_ids_cpu, batch.num_computed_tokens_cpu[:rows], scheduled, tables)

    def _isolated(self, batch: Batch, work: Work) -> list[tuple[Work, Tensor]]:
        """Run a step; when packed prefills come out non-finite, run each alone.

        A NaN value times a masked weight of 0 is NaN, so one broken request would break its neighbours in the pack,
        and through the padding, which is written to the null block, every later step.
        """
        hidden_TH = self._forward(work)
        if work.step.phase is Phase.DECODE or bool(torch.isfinite(_last(work, hidden_TH).sum())):
            return [(work, hidden_TH)]
        self._clear_block(0)
        if len(work.rows) == 1:
            return [(work, hidden_TH)]
        alone = [self.builder.prefill(batch, [row]) for row in work.rows]
        return [part for piece in alone for part in self._isolated(batch, piece)]

    def _forward(self, work: Work) -> Tensor:
        if self.warm and work.shape not in self.visited:
            if self.config.strict_shapes:
                raise ShapeError("step", work.shape, "a shape that warm-up visited", "This is a bug in the buckets.")
            logger.warning("Step of a new shape after warm-up: %s", work.shape)
            self.visited.add(work.shape)
        phase, size, context = work.shape
        metrics.STEPS.record(phase.value, size, context, real=sum(work.counts), padded=work.step.tokens)
        if not self.warm:
            return self.model.forward(work.step)
        names = self.requests.batch.req_ids
        return self.watch.forward(work, [names[row] for row in work.rows])

    def _row_logits(self, parts: list[tuple[tuple[int, ...], Tensor]], batch: Batch) -> Tensor:
        """float32 [rows, V]: the logits of each row's last token, in the batch's order."""
        last = (batch.computed + batch.scheduled - 1).tolist()
        spans = [Span(self.requests.batch.req_ids[row], row, 1, position) for row, position in enumerate(last)]
        if len(parts) == 1 and parts[0][0] == tuple(range(len(last))):
            return self._logits(parts[0][1], spans)
        hidden_RH = torch.cat([part for _, part in parts])
        order = torch.tensor([row for some, _ in parts for row in some])
        return self._logits(hidden_RH[torch.argsort(order)], spans)

    def _logits(self, hidden_RH: Tensor, spans: list[Span]) -> Tensor:
        """The head, on rows padded to a bucket and no more than the largest at a time; ``spans`` say whose they are."""
        largest = self.buckets.rows[-1]
        done = []
        for start in range(0, hidden_RH.shape[0], largest):
            part = hidden_RH[start : start + largest]
            rows = part.shape[0]
            missing = self.buckets.row_bucket(rows) - rows
            if missing:
                part = torch.cat((part, part.new_zeros(missing, part.shape[1])))
            done.append(self.watch.logits(part, cut(spans, start, rows))[:rows])
        return done[0] if len(done) == 1 else torch.cat(done)

    def _collect_prompt_logprobs(self, work: Work, hidden_TH: Tensor, found: dict[str, LogprobsTensors | None]) -> None:
        for row, start, count in zip(work.rows, work.starts, work.counts, strict=True):
            state = self.requests.states[self.requests.batch.req_ids[row]]
            whole = self.prompt_logprobs.collect(state, hidden_TH[start : start + count])
            if whole is not None:
                found[state.req_id] = whole

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Choose the tokens of the forward that :meth:`execute_model` ran, and note them."""
        assert self._pending is not None, "sample_tokens without execute_model"
        pending, self._pending = self._pending, None
        batch = self.requests.batch
        if pending.broken:
            pending.logits_BV[pending.broken] = 0.0
            for row in pending.broken:
                # The scheduler takes no prompt log probabilities of a request that gives no token.
                pending.prompt_logprobs.pop(batch.req_ids[row], None)
        choice = self.sampler.choose(pending.logits_BV, batch, pending.output, grammar, pending.idle + pending.broken)
        silent = {*pending.idle, *pending.broken}
        tokens: list[list[int]] = []
        for row, token in enumerate(choice.tokens):
            tokens.append([] if row in silent else [token])
            if row not in silent:
                self.requests.append(row, token)
        return ModelRunnerOutput(
            req_ids=list(batch.req_ids),
            req_id_to_index=dict(batch.req_id_to_index),
            sampled_token_ids=tokens,
            logprobs=None if choice.logprobs is None else choice.logprobs.tolists(),
            prompt_logprobs_dict=pending.prompt_logprobs,
            num_nans_in_logits=self._report_broken(pending.broken),
        )

    def _report_broken(self, rows: list[int]) -> dict[str, int] | None:
        """Name the requests whose logits are not finite, and clean what they left in the cache."""
        if not rows:
            return None
        batch = self.requests.batch
        names = [batch.req_ids[row] for row in rows]
        error = NonFiniteError("logits", names, "finite numbers", "These requests fail; the engine goes on.")
        logger.error("%s", error)
        self._clear_block(0)
        for name in names:
            for blocks in self.requests.states[name].block_ids:
                for block in blocks:
                    self._clear_block(block)
        return dict.fromkeys(names, 1)

    def _clear_block(self, block: int) -> None:
        """Zero what is not finite in a block. The rest stays: healthy requests may share the block as a prefix."""
        for binding in self.bindings.values():
            binding.pages[block].nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _last(work: Work, hidden_TH: Tensor) -> Tensor:
    """Hidden states of each row's last token, [rows, H]."""
    if work.step.phase is Phase.DECODE:
        return hidden_TH[: len(work.rows)]
    return hidden_TH[torch.tensor(work.last_tokens())]
