"""Entry point ``vllm.general_plugins``: runs in every process of vLLM, as often as vLLM likes."""

from __future__ import annotations

import logging

from vllm_neuron import envs

logger = logging.getLogger(__name__)


def load() -> None:
    """Apply the shims, and make architectures that vLLM does not know known to it."""
    from vllm.platforms import current_platform

    if current_platform.device_name != "cpu" or not current_platform.is_out_of_tree():
        return
    log_like_vllm()
    from vllm_neuron.vllm import shims

    shims.apply()
    _register_unknown_architectures()


def log_like_vllm() -> None:
    """vLLM sets up its own logger only; without its handlers our INFO lines go nowhere."""
    ours, theirs = logging.getLogger("vllm_neuron"), logging.getLogger("vllm")
    ours.setLevel(envs.VLLM_NEURON_LOG_LEVEL)
    for handler in theirs.handlers:
        if handler not in ours.handlers:
            ours.addHandler(handler)
    ours.propagate = not ours.handlers


def _register_unknown_architectures() -> None:
    """vLLM asks a class for what a model can do; for its own architectures it has one, for ours it gets a stub."""
    from vllm import ModelRegistry

    from vllm_neuron.model.registry import registered

    known = ModelRegistry.get_supported_archs()
    for architecture in registered():
        if architecture not in known:
            ModelRegistry.register_model(architecture, "vllm_neuron.vllm.stub:TextGenerationStub")
