"""The watchers that ``neuron_config`` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vllm_neuron import envs
from vllm_neuron.functional import dispatch
from vllm_neuron.model.kv_cache import KVBinding
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.vllm.adapter import Adapter
from vllm_neuron.vllm.worker.watch import Watcher


def configured(
    config: NeuronConfig,
    model: nn.Module,
    about: dict[str, Any],
    folder: Path,
    bindings: Callable[[], Mapping[str, KVBinding]],
) -> list[Watcher]:
    """Make them on this rank, before warm-up; what is fed comes before what is captured.

    Args:
        config: the plugin's own.
        model: loaded.
        about: model, dtype and the like, for the files that they write.
        folder: the checkpoint.
        bindings: gives the caches, which are bound later.

    Raises:
        ConfigError: a module pattern or a folder that does not fit.
    """
    rank = get_tp_group().rank
    found: list[Watcher] = []
    if config.tensor_replacement is not None:
        from vllm_neuron.vllm.worker.feeding import FileReplacement

        found.append(FileReplacement(model, config.tensor_replacement, rank))
    if config.tensor_capture is not None:
        from vllm_neuron.vllm.worker.capturing import FileCapture

        found.append(FileCapture(model, config.tensor_capture, rank, about))
    if config.input_snapshot is not None:
        from vllm_neuron.vllm.worker.snapshotting import InputSnapshots

        found.append(InputSnapshots(config.input_snapshot, rank, about, bindings, folder))
    return found


def about(vllm_config: Any, adapter: Adapter) -> dict[str, Any]:
    """What files say of the run that wrote them: model, dtype, ranks, configuration and versions."""
    import vllm

    from vllm_neuron.snapshot.replay import machine, versions

    model = vllm_config.model_config
    inspecting = ("tensor_capture", "tensor_replacement", "input_snapshot")
    given = (vllm_config.additional_config or {}).get("neuron_config") or {}
    return {
        "model": str(model.model),
        "architecture": model.architectures[0],
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "tensor_parallel_size": vllm_config.parallel_config.tensor_parallel_size,
        "neuron_config": {key: value for key, value in given.items() if key not in inspecting},
        "kernels": dispatch.state.mode or envs.VLLM_NEURON_KERNELS,
        "kernel_target": adapter.kernel_target,
        "machine": machine(),
        "versions": {**versions(), "vllm": vllm.__version__},
    }
