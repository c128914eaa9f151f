"""A package installed into a folder of its own: what a child process finds, and the user's environment does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from onboard.demo.staging import staged
from onboard.errors import RunError
from vllm_neuron import envs

# What pip may be configured to do elsewhere must not happen here; nothing is downloaded.
PIP = {
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_NO_INPUT": "1",
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
OPTIONS = ("--quiet", "--no-deps", "--no-build-isolation", "--no-compile")
MADE_BY_BUILDS = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")


def install(package: Path, target: Path) -> None:
    """Install a package's folder into `target` with pip, entry points included; `target` changes whole or not at all.

    Args:
        package: folder with a `pyproject.toml`; nothing is written there.
        target: the folder for `PYTHONPATH`; what an earlier call put there is replaced.

    Raises:
        RunError: pip is not there, or could not build the package; the end of its output is in the message.
    """
    with staged(target) as stage, tempfile.TemporaryDirectory(prefix="onboard-install-") as scratch:
        # Builds leave folders beside the sources.
        copy = Path(shutil.copytree(package, Path(scratch) / package.name, ignore=MADE_BY_BUILDS))
        command = [sys.executable, "-m", "pip", "install", *OPTIONS, "--target", str(stage), str(copy)]
        done = subprocess.run(
            command, env=envs.child(PIP), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
            action = f"pip and setuptools 77 or newer are needed: pip install 'setuptools>=77'. It said:\n{said}"
            raise RunError("pip install", f"exit code {done.returncode}", f"{package} installed", action)


def environment(target: Path, distribution: str) -> dict[str, str]:
    """Variables with which a child process finds the package in `target`, serves with it, and says so in its log.

    Args:
        target: where :func:`install` put it.
        distribution: its name for pip; it decides between packages that register the same architecture.
    """
    before = envs.foreign("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(target.resolve()), *([before] if before else [])]),
        "VLLM_NEURON_MODEL_PACKAGE": distribution,
        "VLLM_NEURON_LOG_LEVEL": "INFO",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_CONFIG_PATH": "",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
