"""Entry point ``vllm.general_plugins``: runs in every process of vLLM, as often as vLLM likes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from vllm_neuron import envs

logger = logging.getLogger(__name__)


def load() -> None:
    """Share counters with the server, apply the shims, and make architectures that vLLM does not know known to it."""
    if not _active():
        return
    log_like_vllm()
    from vllm_neuron import metrics
    from vllm_neuron.vllm import shims

    metrics.share()
    shims.apply()
    from vllm_neuron.model.registry import registered

    _register(registered())


def register_architecture(architecture: str) -> None:
    """Make one architecture known to vLLM: what a model package's own general plugin calls.

    Does nothing on another platform, whose own implementation it would hide, and for what vLLM knows already.

    Args:
        architecture: the name in ``architectures``.
    """
    if _active():
        _register((architecture,))


def _active() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.device_name == "cpu" and current_platform.is_out_of_tree())


def log_like_vllm() -> None:
    """vLLM sets up its own logger only; without its handlers our INFO lines go nowhere."""
    ours, theirs = logging.getLogger("vllm_neuron"), logging.getLogger("vllm")
    ours.setLevel(envs.VLLM_NEURON_LOG_LEVEL)
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    ours.propagate = not ours.handlers


def _register(architectures: Iterable[str]) -> None:
    """vLLM asks a class for what a model can do; for its own architectures it has one, for ours it gets a stub."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture in architectures:
        if architecture not in known:
            ModelRegistry.register_model(architecture, "vllm_neuron.vllm.stub:TextGenerationStub")
