"""One rank: process set-up, loading, memory, warm-up, and the calls that vLLM's executor makes."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

import vllm_neuron.functional as NF
from vllm_neuron import envs, metrics
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.registry import resolve
from vllm_neuron.parallel import TorchGroup
from vllm_neuron.parallel.neuron_parallel_state import set_tp_group
from vllm_neuron.vllm import options
from vllm_neuron.vllm.adapter import get_adapter
from vllm_neuron.vllm.general import log_like_vllm
from vllm_neuron.vllm.worker import kv, watchers
from vllm_neuron.vllm.worker.neuron_model_runner import NeuronModelRunner
from vllm_neuron.vllm.worker.tap import Inspection

logger = logging.getLogger(__name__)


class NeuronWorker(Inspection, WorkerBase):
    """vLLM 0.32 worker; see :class:`vllm.v1.worker.worker_base.WorkerBase` for the order of the calls."""

    def __init__(
        self,
        vllm_config: Any,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        log_like_vllm()
        self.config = options.neuron_config(vllm_config)
        self.adapter = get_adapter()
        self.runner: NeuronModelRunner | None = None
        self._model: NeuronModel | None = None

    def init_device(self) -> None:
        """Threads, process group, seed."""
        from vllm.distributed import get_tp_group
        from vllm.utils.torch_utils import set_random_seed
        from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

        torch.set_grad_enabled(False)
        if self.parallel_config.distributed_executor_backend == "mp":
            atexit.register(_leave_at_once)
        self.device = self.adapter.device
        self.adapter.start(self.parallel_config.world_size)
        NF.set_target(self.adapter.kernel_target)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, self.adapter.dist_backend
        )
        if self.parallel_config.tensor_parallel_size > 1:
            set_tp_group(TorchGroup(get_tp_group().device_group))
        set_random_seed(self.model_config.seed)
        logger.info("vllm_neuron runs in %s, %d threads", self.adapter.name, torch.get_num_threads())

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Build this rank's model on the meta device, fill it from the checkpoint, prepare it.

        Raises:
            ConfigError, CheckpointError, UnsupportedError: before anything is computed.
        """
        config = self.model_config
        architecture, dtype = config.architectures[0], config.dtype
        assert isinstance(dtype, torch.dtype), "vLLM resolves the dtype before it starts a worker"
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = resolve(architecture).from_configs(config.hf_text_config, self.config)
        finally:
            torch.set_default_dtype(before)
        if model.max_position is not None and config.max_model_len > model.max_position:
            raise ConfigError("max_model_len", config.max_model_len, f"at most {model.max_position}, the model's own")
        model.limit_positions(config.max_model_len)
        folder = self._folder()
        model.load_weights(folder, dtype)
        assert isinstance(model, nn.Module)
        self.adapter.prepare(model.eval(), compile_layers=self.config.compile_layers)
        self._model = model
        self.runner = NeuronModelRunner(self.vllm_config, self.config, self.adapter, model)
        self.model_runner = self.runner  # type: ignore[assignment]
        about = watchers.about(self.vllm_config, self.adapter)
        self.runner.watch.watchers += watchers.configured(
            self.config, model, about, folder, bindings=lambda: self._running.bindings
        )

    def _folder(self) -> Path:
        """The checkpoint's folder: as given, or the hub's files in the local cache (fetched when online)."""
        path = Path(self.model_config.model)
        if path.is_dir():
            return path
        from huggingface_hub import snapshot_download

        patterns = ["*.safetensors", "*.safetensors.index.json", "config.json"]
        return Path(
            snapshot_download(
                self.model_config.model,
                revision=self.model_config.revision,
                allow_patterns=patterns,
                cache_dir=self.load_config.download_dir,
            )
        )

    @property
    def _running(self) -> NeuronModelRunner:
        assert self.runner is not None, "load_model comes first"
        return self.runner

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """What each layer asks of the cache, in vLLM's words."""
        return kv.to_vllm(self._running.spec, self.cache_config.block_size)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Layers outermost: a page of a layer is one run of bytes."""
        return ["LBNHC"]

    def determine_available_memory(self) -> int:
        """Bytes that this rank gives to the cache."""
        fixed = self.cache_config.kv_cache_memory_bytes
        if fixed:
            return fixed
        return self.adapter.kv_budget(self.cache_config.gpu_memory_utilization, self.parallel_config.world_size)

    def update_max_model_len(self, max_model_len: int) -> None:
        """vLLM shrank the length to what the cache holds."""
        self.model_config.max_model_len = max_model_len

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate and bind the cache."""
        self._running.initialize_kv_cache(kv_cache_config)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Visit every bucket."""
        seconds = self._running.warm_up()
        metrics.publish()
        return CompilationTimes(language_model=seconds, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Text generation."""
        return ("generate",)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """See :meth:`NeuronModelRunner.execute_model`."""
        return self._running.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """See :meth:`NeuronModelRunner.sample_tokens`."""
        output = self._running.sample_tokens(grammar_output)
        metrics.publish()
        return output

    def get_model(self) -> nn.Module:
        """The model, for inspection."""
        assert isinstance(self._model, nn.Module)
        return self._model

    def synchronize_device(self) -> None:
        """Steps are complete when they return."""

    def reset_encoder_cache(self) -> None:
        """There is no encoder."""

    def profile(self, is_start: bool = True, profile_prefix: str | None = None) -> None:
        """Profiling through vLLM is refused by name."""
        from vllm_neuron.errors import UnsupportedError

        raise UnsupportedError("profile", is_start, "a profiler of your own around the process")

    def shutdown(self) -> None:
        """Leave the process group; vLLM destroys it right after this."""
        if self.runner is not None:
            self.runner.watch.close()
        set_tp_group(None)

    def check_health(self) -> None:
        """Alive when it answers; a wrong environment is found here too."""
        envs.check_all()


def _leave_at_once() -> None:
    """End a rank's own process without taking the interpreter apart, as a forked child of ``multiprocessing`` does.

    Taking it apart walks a million objects of torch and vLLM, seconds of CPU on each rank, and vLLM kills an engine
    that needs five. Nothing is lost: vLLM 0.32's ``worker_main`` has logged any exception, and ends with 0 after it.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
