"""Where a kernel runs: on a Neuron device, in AWS's simulator, or on our stand-in.

Two public frameworks run kernels on a device, and each has a function ``wrap_nki(kernel)`` whose result is called as
``wrapped[grid](**arguments)``: TorchNeuron (``torch_neuronx.nki_hop``) and the lite library of the public plugin
(``libtorch_neuronx_lite.nki.nki_hop``). AWS's simulator has had three spellings. All of it follows public
documentation; no device or real simulator has run this module yet.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.nki import api
from vllm_neuron.nki.graphs import constant

DEVICE_TYPES = ("neuron", "privateuseone", "xla")
FRAMEWORKS = ("torch_neuronx.nki_hop", "libtorch_neuronx_lite.nki.nki_hop")
GRIDS = (1, 2)
CORES_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"


class Route(StrEnum):
    """Where a call goes."""

    DEVICE = "Neuron device"
    SIMULATOR = "simulator of nki"
    STANDIN = "stand-in"


def route(device_type: str) -> Route | None:
    """The route of tensors on a device of that type; None when no kernel runs there."""
    if device_type in DEVICE_TYPES:
        return Route.DEVICE
    if device_type == "cpu":
        return host_route()
    return None


def host_route() -> Route:
    """The route of tensors on the host."""
    return Route.SIMULATOR if api.IS_REAL else Route.STANDIN


@constant
def logical_cores() -> int:
    """NeuronCores of a logical core, which is the grid of a kernel: ``NEURON_LOGICAL_NC_CONFIG``, 1 or 2.

    Unset, it is 2 on a machine with Neuron devices, as the runtime has it on trn2 and trn3, and 1 elsewhere. A graph
    holds the value it was traced with.

    Raises:
        ConfigError: another value.
    """
    text = envs.foreign(CORES_VARIABLE)
    if not text:
        return 2 if device_present() else 1
    if text not in ("1", "2"):
        raise ConfigError(CORES_VARIABLE, text, "1 or 2", "Set it to one of those or unset it.")
    return int(text)


def device_present() -> bool:
    """This machine has a Neuron device."""
    return next(Path("/dev").glob("neuron[0-9]*"), None) is not None


def framework_loaded() -> bool:
    """One of the frameworks is imported in this process."""
    return any(name in sys.modules for name in FRAMEWORKS)


def device_caller(kernel: Any) -> Any:
    """The framework's own wrapper of a kernel; a framework that is imported already goes first.

    Raises:
        UnsupportedError: neither framework is installed.
    """
    for name in sorted(FRAMEWORKS, key=lambda name: name.split(".")[0] not in sys.modules):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return module.wrap_nki(kernel)
    raise UnsupportedError(
        "kernel on a Neuron device",
        "no framework",
        " or ".join(FRAMEWORKS),
        "Install torch-neuronx, or set VLLM_NEURON_KERNELS=off.",
    )


def run_on_host(kernel: Any, grid: int, arguments: Mapping[str, Any]) -> Any:
    """Run a kernel on NumPy arrays, in the simulator or on the stand-in, and return what it returns."""
    if api.IS_REAL:
        return _simulate(kernel, grid, arguments)
    return (kernel if grid == 1 else kernel[grid])(**arguments)


def _simulate(kernel: Any, grid: int, arguments: Mapping[str, Any]) -> Any:
    """``nki.simulate`` of NKI 0.3 and later, or one of the two older names."""
    if hasattr(api.nki, "simulate"):
        return api.nki.simulate(kernel if grid == 1 else kernel[grid])(**arguments)
    if hasattr(api.nki, "cpu_simulate"):
        return api.nki.cpu_simulate(kernel)[grid](**arguments)
    try:
        simulator = importlib.import_module("nki.simulator")
    except ImportError as error:
        raise UnsupportedError(
            "kernel on the host",
            getattr(api.nki, "__version__", "an nki"),
            "an nki with simulate, cpu_simulate or simulator.simulate_kernel",
            "Install NKI 0.3 or later, or set VLLM_NEURON_KERNELS=off.",
        ) from error
    names = inspect.signature(simulator.simulate_kernel).parameters
    return simulator.simulate_kernel(kernel, (), dict(arguments), **{"_lnc" if "_lnc" in names else "lnc": grid})
