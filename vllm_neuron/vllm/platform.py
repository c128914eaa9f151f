"""The platform that vLLM selects: what it may configure, and what it must not ask a Neuron machine for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)
WORKER = "vllm_neuron.vllm.worker.neuron_worker.NeuronWorker"
SCHEDULER = "vllm_neuron.vllm.core.scheduler.NeuronScheduler"
BLOCK_SIZE = 32


class NeuronPlatform(Platform):
    """vLLM 0.32 out-of-tree platform.

    ``device_name`` and ``device_type`` feed ``torch.device``; without a registered backend both are ``cpu``, and the
    adapter decides where tensors really live.
    """

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    ray_device_key = ""
    simple_compile_backend = "eager"
    device_control_env_var = "NEURON_RT_VISIBLE_CORES"
    supported_quantization: list[str] = []  # noqa: RUF012 - vLLM declares it so

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The first is what a checkpoint in another dtype falls back to."""
        return [torch.bfloat16, torch.float32, torch.float16]

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's own kernels are not used."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """vLLM's own kernels are not used."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """There are no Triton kernels here."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """The target in words."""
        from vllm_neuron.vllm.adapter import get_adapter

        return f"neuron ({get_adapter().name})"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes; vLLM derives default batch limits from it."""
        from vllm_neuron.vllm.adapter import get_adapter

        return get_adapter().total_memory()

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Resident bytes of this process."""
        import psutil

        return float(psutil.Process().memory_info().rss)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Pinning needs an accelerator that torch knows."""
        return False

    @classmethod
    def inference_mode(cls) -> Any:
        """``no_grad``: inference tensors can't be written in place outside of the mode, and the cache is."""
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """The adapter does it."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Nothing beyond ``torch.manual_seed``."""

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        """Never asked for: attention is the model's own block."""
        raise UnsupportedError("attention backend", args[0] if args else None, "vllm_neuron's own attention block")

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Windowed layers give their blocks back."""
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """vLLM's graph capture is not used."""
        return False

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """The block size is set in :meth:`check_and_update_config`."""

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        """Plain ``torch.distributed``."""
        return False

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """All of :attr:`supported_dtypes`."""

    @classmethod
    def validate_environ(cls, hard_fail: bool) -> None:
        """vLLM's check of ``VLLM_*`` names, and ours for those that start with ``VLLM_NEURON_``.

        Raises:
            ConfigError: one of ours is unknown or does not parse.
            ValueError: an unknown one of vLLM's, when ``hard_fail``.
        """
        from vllm.envs import environment_variables

        envs.check_all()
        for name in envs.unknown_foreign("VLLM_", known=environment_variables):
            if hard_fail:
                raise ValueError(f"Unknown vLLM environment variable detected: {name}")
            logger.warning("Unknown vLLM environment variable detected: %s", name)

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse by name what would otherwise be ignored."""
        from vllm_neuron.vllm.options import refuse_request

        refuse_request(params)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Choose worker and scheduler, switch off what is not used, refuse what is not supported.

        Called for every ``VllmConfig``, partial ones too, so it checks only what is there.

        Raises:
            ConfigError, UnsupportedError: naming the option.
        """
        from vllm_neuron.vllm.options import neuron_config, refuse_unsupported

        envs.check_all()
        neuron_config(vllm_config)
        cls._choose(vllm_config)
        if vllm_config.model_config is not None and vllm_config.cache_config is not None:
            refuse_unsupported(vllm_config)
            _refuse_foreign_scheduler(vllm_config)
            _refuse_unknown_architecture(vllm_config)

    @classmethod
    def _choose(cls, vllm_config: VllmConfig) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        parallel.disable_custom_all_reduce = True
        if parallel.world_size > 1:
            # A fork after torch has started threads hangs.
            envs.set_foreign("VLLM_WORKER_MULTIPROC_METHOD", "spawn", only_if_unset=False)
        if scheduler.async_scheduling:
            # vLLM has replaced an unset option by True here, so a user's own True looks the same.
            logger.info("async_scheduling is off: it is not supported yet")
        scheduler.async_scheduling = False
        if scheduler.scheduler_cls is None:
            scheduler.scheduler_cls = SCHEDULER
        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        cache = vllm_config.cache_config
        if cache is not None and not cache.user_specified_block_size:
            cache.block_size = BLOCK_SIZE


def _refuse_foreign_scheduler(vllm_config: VllmConfig) -> None:
    """Only our scheduler ends a request whose logits are not finite; under another one it would never end."""
    chosen = vllm_config.scheduler_config.scheduler_cls
    if chosen == SCHEDULER:
        return
    from vllm_neuron.vllm.core.scheduler import NeuronScheduler

    kind = vllm_config.scheduler_config.get_scheduler_cls()
    if not (isinstance(kind, type) and issubclass(kind, NeuronScheduler)):
        raise ConfigError("scheduler_cls", chosen, f"a subclass of {SCHEDULER}", "Leave it out, or derive from that.")


def _refuse_unknown_architecture(vllm_config: VllmConfig) -> None:
    from vllm_neuron.model.registry import find

    for architecture in vllm_config.model_config.architectures[:1]:
        find(architecture)
