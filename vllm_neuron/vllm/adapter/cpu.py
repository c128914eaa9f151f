"""CPU mode: the same statically shaped steps on this machine's cores."""

from __future__ import annotations

import os
from types import MethodType

import psutil
import torch
from torch import nn

import vllm_neuron.functional as NF
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.interface import DecoderModel

GIB = 2**30
KV_CAP = 4 * GIB


class CpuAdapter:
    """See :class:`vllm_neuron.vllm.adapter.Adapter`."""

    name = "CPU mode"
    kernel_target = "cpu"
    device = torch.device("cpu")
    dist_backend = "gloo"
    needs_full_warmup = False

    def start(self, local_ranks: int) -> None:
        """Divide the cores that this process may use among the ranks."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        chosen = envs.VLLM_NEURON_CPU_THREADS
        if chosen > cores:
            raise ConfigError(
                "VLLM_NEURON_CPU_THREADS", chosen, f"at most {cores}, the cores that this process may use"
            )
        torch.set_num_threads(chosen or max(1, cores // local_ranks))

    def total_memory(self) -> int:
        """The machine's memory."""
        return psutil.virtual_memory().total

    def kv_budget(self, utilization: float, local_ranks: int) -> int:
        """``VLLM_NEURON_CPU_KV_GIB``, or a share of what is free, 4 GiB at most."""
        fixed = envs.VLLM_NEURON_CPU_KV_GIB
        if fixed:
            return fixed * GIB
        return min(KV_CAP, int(psutil.virtual_memory().available * utilization / local_ranks))

    def prepare(self, model: nn.Module, *, compile_layers: bool) -> None:
        """Lay the weights out for the kernels that run; compile one function for each class of layer when asked."""
        if isinstance(model, DecoderModel):
            if NF.tries_nki():
                model.lay_out_weights()
            else:
                model.pack_weights()
            if compile_layers:
                _compile_layers(model)


def _compile_layers(model: DecoderModel) -> None:
    """One compiled ``forward`` for each layer class, shared by its instances: their weights are graph inputs.

    Each bucket's shape is compiled once; a whole-model graph would cost that again for every layer.
    """
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 1024
    compiled = {kind: torch.compile(kind.forward, dynamic=False) for kind in {type(layer) for layer in model.layers}}
    for layer in model.layers:
        layer.forward = MethodType(compiled[type(layer)], layer)
