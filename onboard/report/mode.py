"""Where models run here, in words: every command that runs one says it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vllm_neuron import envs


class Mode(NamedTuple):
    """`name` is `cpu`, `neuron` or `inactive`; `words` is the same for people."""

    name: str
    words: str


# Proofs compute on the CPU wherever they run: the reference is there, and float32.
PROOF = Mode("cpu", "CPU mode: the proof computes on this machine's CPU, in float32")


def neuron_devices() -> list[str]:
    """The Neuron device files of this machine."""
    return sorted(str(path) for path in Path("/dev").glob("neuron*"))


def mode() -> Mode:
    """Where the plugin would run a model now.

    Raises:
        ConfigError: `VLLM_NEURON_CPU_MODE` does not parse.
    """
    if envs.VLLM_NEURON_CPU_MODE:
        return Mode("cpu", "CPU mode: the statically shaped code runs on this machine's CPU")
    devices = neuron_devices()
    if devices:
        return Mode("neuron", f"Neuron mode: {len(devices)} device file(s), first {devices[0]}")
    return Mode("inactive", "no Neuron device, and CPU mode is off")
