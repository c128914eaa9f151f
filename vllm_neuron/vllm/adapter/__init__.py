"""The one place that decides where things run: device, threads, compilation, memory, process groups.

Everything else asks the adapter, and nothing asks which adapter it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from vllm_neuron import envs
from vllm_neuron.errors import UnsupportedError


class Adapter(Protocol):
    """What the runtime asks of a target."""

    name: str
    """How people call it; shown by commands and in the log."""
    kernel_target: str
    """Which kernels of an operation are tried."""
    device: torch.device
    """Where tensors of a step live."""
    dist_backend: str
    """Backend of ``torch.distributed``."""
    needs_full_warmup: bool
    """Each shape is a compiled graph, so warm-up has to run every bucket."""

    def start(self, local_ranks: int) -> None:
        """Set up the process for one of ``local_ranks`` ranks on this machine."""
        ...

    def total_memory(self) -> int:
        """Bytes of memory that a rank's device has."""
        ...

    def kv_budget(self, utilization: float, local_ranks: int) -> int:
        """Bytes that one rank may give to the KV cache, after the weights are loaded."""
        ...

    def prepare(self, model: nn.Module, *, compile_layers: bool) -> None:
        """Make a loaded model ready: weight layout, compilation."""
        ...


def get_adapter() -> Adapter:
    """The adapter of this process.

    Raises:
        UnsupportedError: there is a Neuron device and CPU mode is not asked for; the device's adapter is not written.
    """
    from vllm_neuron.vllm.adapter.cpu import CpuAdapter

    if envs.VLLM_NEURON_CPU_MODE:
        return CpuAdapter()
    devices = sorted(path.name for path in Path("/dev").glob("neuron*"))
    raise UnsupportedError(
        "device",
        devices or "no /dev/neuron*",
        "CPU mode",
        "Running on NeuronCores is not in this version: set VLLM_NEURON_CPU_MODE=1.",
    )
