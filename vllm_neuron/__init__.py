"""vLLM plugin for AWS Trainium: building blocks, loading and runtime.

Importing this package is cheap: neither torch nor vLLM is loaded until a submodule that needs it is.
"""

from __future__ import annotations

import logging
from pathlib import Path

__version__ = "0.1.0"

PLATFORM = "vllm_neuron.vllm.platform.NeuronPlatform"
logger = logging.getLogger(__name__)


def register() -> str | None:
    """Entry point ``vllm.platform_plugins``: the platform's qualified name, or None to decline.

    vLLM calls this in every process, twice for each resolution, and hides exceptions; so it looks, answers, and mends
    only what vLLM asks for before any other plugin can run (its own version, which the CPU wheel hides).
    """
    from vllm_neuron import envs
    from vllm_neuron.errors import ConfigError

    try:
        cpu_mode = envs.VLLM_NEURON_CPU_MODE
    except ConfigError:
        # Raised here it would switch the plugin off without a word; the platform reads the variable again and raises.
        cpu_mode = True
    if cpu_mode or any(Path("/dev").glob("neuron*")):
        from vllm_neuron.vllm.shims import name_the_cpu_wheel

        name_the_cpu_wheel()
        return PLATFORM
    logger.warning(
        "vllm_neuron declines: no /dev/neuron* device, and VLLM_NEURON_CPU_MODE is not set. "
        "Set VLLM_NEURON_CPU_MODE=1 to run on the CPU; `onboard doctor` explains the rest."
    )
    return None
