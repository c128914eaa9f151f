"""The stand-in under the names ``nki``, ``nki.language`` and ``nki.isa``, for kernels that import those."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys

from vllm_neuron.errors import UnsupportedError
from vllm_neuron.nki.standin import isa, language, package

_NAMES = {"nki": package, "nki.language": language, "nki.isa": isa}


def real_nki() -> str | None:
    """Where AWS's ``nki`` is installed; None when it is absent, or only the empty package of the public index.

    A package counts as real when it has the submodules ``language`` and ``isa``.
    """
    if sys.modules.get("nki") is package:
        return None
    try:
        spec = importlib.util.find_spec("nki")
    except ValueError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    places = list(spec.submodule_search_locations)
    for name in ("language", "isa"):
        if importlib.machinery.PathFinder.find_spec(f"nki.{name}", places) is None:
            return None
    return spec.origin or places[0]


def install() -> None:
    """Put the stand-in into ``sys.modules``; a second call changes nothing.

    Raises:
        UnsupportedError: the real ``nki`` is importable, or some other module holds one of the names.
    """
    where = real_nki()
    if where is not None:
        raise UnsupportedError("nki", where, "no real nki package", "Use it instead of the stand-in: nki.simulate.")
    for name, module in _NAMES.items():
        held = sys.modules.get(name)
        if held is not None and held is not module and name != "nki":
            raise UnsupportedError(name, held, "no other module of that name", "Unload it before install().")
    sys.modules.update(_NAMES)


def uninstall() -> None:
    """Take the stand-in out of ``sys.modules`` again; other modules of those names stay."""
    for name, module in _NAMES.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
