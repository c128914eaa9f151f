"""The runner's copy of the requests, kept in step with the scheduler through vLLM's own ``InputBatch``."""

from __future__ import annotations

import torch
from vllm.sampling_params import SamplingType
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch


class Requests:
    """All requests that are not finished, and the batch of those that run now."""

    def __init__(self, batch: InputBatch) -> None:
        self.batch = batch
        self.states: dict[str, CachedRequestState] = {}

    def update(self, output: SchedulerOutput) -> None:
        """Apply one scheduler step: leave, join, append or replace blocks, close the gaps."""
        for request in output.finished_req_ids:
            self.states.pop(request, None)
            self.batch.remove_request(request)
        cached = output.scheduled_cached_reqs
        staying = output.num_scheduled_tokens.keys() - cached.resumed_req_ids
        for request in self.batch.req_id_to_index.keys() - staying:
            self.batch.remove_request(request)
        joining = [self._new(new) for new in output.scheduled_new_reqs]
        joining += self._running(cached)
        for state in joining:
            self.batch.add_request(state)
        self.batch.condense()
        self.batch.refresh_metadata()

    def _new(self, new: NewRequestData) -> CachedRequestState:
        params = new.sampling_params
        generator = None
        if params is not None and params.sampling_type == SamplingType.RANDOM_SEED:
            generator = torch.Generator(device="cpu")
            assert params.seed is not None
            generator.manual_seed(params.seed)
        state = CachedRequestState(
            req_id=new.req_id,
            prompt_token_ids=new.prompt_token_ids,
            mm_features=new.mm_features,
            sampling_params=params,
            generator=generator,
            block_ids=new.block_ids,
            num_computed_tokens=new.num_computed_tokens,
            output_token_ids=[],
            lora_request=new.lora_request,
        )
        self.states[new.req_id] = state
        return state

    def _running(self, cached: CachedRequestData) -> list[CachedRequestState]:
        joining = []
        for i, request in enumerate(cached.req_ids):
            state = self.states[request]
            state.num_computed_tokens = cached.num_computed_tokens[i]
            new_blocks = cached.new_block_ids[i]
            if request in cached.resumed_req_ids:
                assert new_blocks is not None
                state.block_ids = new_blocks
            elif new_blocks is not None:
                for blocks, more in zip(state.block_ids, new_blocks, strict=True):
                    blocks.extend(more)
            row = self.batch.req_id_to_index.get(request)
            if row is None:
                joining.append(state)
                continue
            self.batch.num_computed_tokens_cpu[row] = state.num_computed_tokens
            if new_blocks is not None:
                self.batch.block_table.append_row(new_blocks, row)
        return joining

    def append(self, row: int, token: int) -> None:
        """Note the token that was sampled for a row."""
        batch = self.batch
        place = batch.num_tokens_no_spec[row]
        batch.token_ids_cpu[row, place] = token
        batch.is_token_ids[row, place] = True
        batch.num_tokens_no_spec[row] += 1
        self.states[batch.req_ids[row]].output_token_ids.append(token)
