"""The name of a kernel in graphs changes with the kernel's source, helpers included, and with nothing else."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from vllm_neuron.nki.wrap import wrap_nki

KERNEL = """
from own_kernels.helper import double
from vllm_neuron.nki.api import nki

@nki.jit
def some_kernel(x):
    return double(x)
"""
HELPER = "def double(x):\n    return x  # {}\n"


def key_of(folder: Path, monkeypatch: pytest.MonkeyPatch, note: str, kernel: str = KERNEL) -> str:
    """The key without what tells equal ones apart, as another process would have it."""
    package = folder / note / "own_kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text(HELPER.format(note.split("-")[0]))
    (package / "kernel.py").write_text(kernel)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(package.parent))
        for name in [name for name in sys.modules if name.startswith("own_kernels")]:
            patch.delitem(sys.modules, name)
        found = wrap_nki(importlib.import_module("own_kernels.kernel").some_kernel).key
        for name in [name for name in sys.modules if name.startswith("own_kernels")]:
            del sys.modules[name]
    return found.partition("#")[0]


def test_a_change_of_a_helper_is_a_change_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = key_of(tmp_path, monkeypatch, "one-a")
    assert key_of(tmp_path, monkeypatch, "one-b") == first
    assert key_of(tmp_path, monkeypatch, "two") != first
    assert key_of(tmp_path, monkeypatch, "one-c", KERNEL + "# changed") != first
