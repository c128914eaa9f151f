"""Constants that instructions take: engines, DMA modes, accumulator commands, hardware versions."""

from __future__ import annotations

from enum import Enum

from vllm_neuron import envs


class engine(Enum):
    """Engines of a NeuronCore."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class dge_mode(Enum):
    """Who generates DMA descriptors; no difference in the stand-in, except what is legal."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What an index outside the tensor does in an indirect DMA."""

    error = 0
    skip = 1


class reduce_cmd(Enum):
    """What an instruction does with its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class matmul_perf_mode(Enum):
    """Modes of ``nc_matmul``."""

    none = "none"
    double_row = "double_row"


class dma_engine(Enum):
    """Engines that issue DMA in older kernels."""

    dma = 1
    gpsimd_dma = 2


class nc_version(Enum):
    """NeuronCore generations: trn1, trn2, trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        return self.value < other.value

    def __le__(self, other: nc_version) -> bool:
        return self.value <= other.value

    def __gt__(self, other: nc_version) -> bool:
        return self.value > other.value

    def __ge__(self, other: nc_version) -> bool:
        return self.value >= other.value


_TARGETS = {
    "trn1": nc_version.gen2,
    "gen2": nc_version.gen2,
    "trn2": nc_version.gen3,
    "gen3": nc_version.gen3,
    "trn3": nc_version.gen4,
    "gen4": nc_version.gen4,
}


def get_nc_version() -> nc_version:
    """The generation that kernels are written for: ``NEURON_PLATFORM_TARGET_OVERRIDE``, trn2 without it."""
    from vllm_neuron.nki.standin.core import fail

    name = envs.foreign("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn2"
    if name not in _TARGETS:
        fail("NEURON_PLATFORM_TARGET_OVERRIDE", name, f"one of {', '.join(_TARGETS)}")
    return _TARGETS[name]
