"""The names that a kernel is written with: ``from vllm_neuron.nki.api import nki, nl, nisa``.

They are the real ``nki``, ``nki.language`` and ``nki.isa`` where those are installed, else our stand-in, which runs the
same code on NumPy. A package ``nki`` without ``jit`` is the public index's empty stub, and not the real one.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

SUBMODULES = ("language", "isa")
NEEDED = ("jit", *SUBMODULES)


def real() -> tuple[ModuleType, ModuleType, ModuleType] | None:
    """The real ``nki``, ``nki.language`` and ``nki.isa``; None when they are not installed.

    A stand-in that was put under those names is not taken for them.
    """
    present = sys.modules.get("nki")
    if present is not None and present.__name__ != "nki":
        return None
    try:
        top = importlib.import_module("nki")
        parts = [importlib.import_module(f"nki.{name}") for name in SUBMODULES]
    except ImportError:
        return None
    if not hasattr(top, "jit"):
        return None
    return top, parts[0], parts[1]


def _load() -> tuple[Any, Any, Any, bool]:
    found = real()
    if found is not None:
        return *found, True
    from vllm_neuron.nki import standin

    return standin.nki, standin.nl, standin.nisa, False


nki: Any
nl: Any
nisa: Any
nki, nl, nisa, IS_REAL = _load()
