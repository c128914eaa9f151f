"""The watchers that ``neuron_config`` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.vllm.worker.watch import Watcher


def configured(config: NeuronConfig, model: nn.Module, about: dict[str, Any], folder: Path) -> list[Watcher]:
    """Make them on this rank, before warm-up; what is fed comes before what is captured.

    Args:
        config: the plugin's own.
        model: loaded.
        about: model, dtype and the like, for the files that they write.
        folder: the checkpoint.

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
    return found


def about(vllm_config: Any) -> dict[str, Any]:
    """What files say of the run that wrote them: model, dtype, ranks and versions."""
    from importlib.metadata import version

    import torch
    import vllm

    from vllm_neuron import envs

    model = vllm_config.model_config
    return {
        "model": str(model.model),
        "architecture": model.architectures[0],
        "dtype": str(model.dtype).removeprefix("torch."),
        "tensor_parallel_size": vllm_config.parallel_config.tensor_parallel_size,
        "kernels": envs.VLLM_NEURON_KERNELS,
        "versions": {"neuron-onboard": version("neuron-onboard"), "torch": torch.__version__, "vllm": vllm.__version__},
    }
