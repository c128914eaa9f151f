"""vLLM's scheduler, and one addition: a request whose logits are not finite fails by itself."""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus


class NeuronScheduler(Scheduler):
    """Chosen through ``scheduler_cls``."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Finish requests that the runner reports as broken, with the reason ``error``, and forget their blocks.

        The blocks must not be found again by their prefix: the runner has cleared them.
        """
        broken = [name for name in model_runner_output.num_nans_in_logits or () if name in self.requests]
        blocks = {block for name in broken for some in self.kv_cache_manager.get_block_ids(name) for block in some}
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if not broken:
            return outputs
        self.kv_cache_manager.evict_blocks(blocks - {0})
        for request in self.finish_requests(broken, RequestStatus.FINISHED_ERROR):
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[],
                    finish_reason=request.get_finished_reason(),
                    stop_reason="NonFiniteError: the model's logits are NaN or infinite",
                    num_nans_in_logits=1,
                )
            )
        return outputs
