"""Which model serves which architecture: entry points of ``vllm_neuron.models``, found without importing them."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, UnsupportedError, nearest
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.neuron_config import NeuronConfig

logger = logging.getLogger(__name__)
GROUP = "vllm_neuron.models"
OURS = "neuron-onboard"
# What a module may raise while it is imported.
BROKEN_IMPORT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Factory(Protocol):
    """What an entry point names."""

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> NeuronModel:
        """Build the model on the meta device."""
        ...


def registered() -> dict[str, list[EntryPoint]]:
    """Architecture -> the entry points that claim it, this project's own last."""
    found: dict[str, dict[tuple[str, str], EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, {})[_owner(point), point.value] = point
    return {
        name: sorted(points.values(), key=lambda p: (_owner(p) == OURS, _owner(p))) for name, points in found.items()
    }


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""


def find(architecture: str) -> EntryPoint:
    """The entry point that serves an architecture; a package of the user's wins over a reference model.

    Raises:
        UnsupportedError: no model is registered under that name; the registered ones are listed.
        ConfigError: several packages claim it and ``VLLM_NEURON_MODEL_PACKAGE`` does not choose.
    """
    known = registered()
    points = known.get(architecture)
    if not points:
        raise UnsupportedError(
            "architectures",
            architecture,
            "one of " + (", ".join(sorted(known)) or "(none is registered)"),
            f"{nearest(architecture, known) if known else ''} To add it, register a factory under that name in the "
            f"entry-point group {GROUP!r}; see docs/add-a-model.md.".strip(),
        )
    chosen = envs.VLLM_NEURON_MODEL_PACKAGE
    owners = sorted({_owner(point) for some in known.values() for point in some})
    if chosen and chosen not in owners:
        raise ConfigError("VLLM_NEURON_MODEL_PACKAGE", chosen, "one of " + ", ".join(owners), nearest(chosen, owners))
    preferred = [p for p in points if _owner(p) == chosen] if chosen else []
    theirs = [p for p in points if _owner(p) != OURS]
    candidates = preferred or theirs or points
    if len(candidates) > 1:
        raise ConfigError(
            f"architecture {architecture}",
            [f"{_owner(p)} ({p.value})" for p in candidates],
            "one model package",
            "Uninstall one, or set VLLM_NEURON_MODEL_PACKAGE to the distribution that shall serve it.",
        )
    if len(points) > 1:
        logger.info(
            "%s is served by %s, not by %s",
            architecture,
            _owner(candidates[0]),
            ", ".join(_owner(p) for p in points if p is not candidates[0]),
        )
    return candidates[0]


def resolve(architecture: str) -> type[Factory]:
    """The factory of an architecture, imported.

    Raises:
        UnsupportedError, ConfigError: as :func:`find`.
        ConfigError: the package does not import; the original exception is in the message and chained.
    """
    point = find(architecture)
    try:
        return point.load()
    except BROKEN_IMPORT as error:
        raise ConfigError(
            f"model package {_owner(point)}: {point.value}",
            f"{type(error).__name__}: {error}",
            "a factory that imports",
            "Run `onboard doctor` for the file and line.",
        ) from error
