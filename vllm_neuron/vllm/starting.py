"""Starting an engine whose core runs in this process: its options, its environment, and what keeps it from starting."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import vllm_neuron.functional as NF
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError

# Rows of a step whose logits come through a pipe from another process, all at once.
PIPED_TOKENS = 256


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is started; each field is vLLM's option of that name unless said otherwise.

    Attributes:
        dtype: ``float32`` or ``bfloat16``.
        max_model_len: tokens of the longest prompt, and one more; the model's own length when None.
        max_num_batched_tokens: chunk size of prefills; vLLM's default when None (256 with tensor parallelism, where
            logits come from another process).
        max_num_seqs: rows of a decode, and rows of the head at a time; no more than a chunk, which is vLLM's rule.
        tensor_parallel_size: ranks, each a process of its own when more than one.
        kernels: ``auto``, ``off``, ``simulate`` or ``require`` (``VLLM_NEURON_KERNELS``).
        enable_prefix_caching: a prompt whose beginning was scored before goes on from the cached blocks, and
            ``Scored.first`` is the first position that was computed. Off by default: all positions are computed.
        kv_cache_bytes: of each rank; vLLM's ``kv_cache_memory_bytes``.
        neuron_config: the plugin's own.
        engine: any further options of ``vllm.LLM``.
    """

    dtype: str = "bfloat16"
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 32
    tensor_parallel_size: int = 1
    kernels: Literal["auto", "off", "simulate", "require"] = "auto"
    enable_prefix_caching: bool = False
    kv_cache_bytes: int | None = None
    neuron_config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``vllm.LLM``."""
        from vllm_neuron.vllm import forcing

        tokens = self.max_num_batched_tokens
        if tokens is None and self.tensor_parallel_size > 1:
            tokens = PIPED_TOKENS
        given = {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": tokens,
            "max_num_seqs": self.max_num_seqs if tokens is None else min(self.max_num_seqs, tokens),
            "tensor_parallel_size": self.tensor_parallel_size,
            "enable_prefix_caching": self.enable_prefix_caching,
            "kv_cache_memory_bytes": self.kv_cache_bytes,
            "additional_config": {"neuron_config": dict(self.neuron_config)},
            "logits_processors": [forcing.NAME],
            # Nobody reads the log-probabilities, so none are made of the logits.
            "logprobs_mode": "raw_logits",
            "skip_tokenizer_init": True,
            "disable_log_stats": True,
            "seed": 0,
        }
        return {key: value for key, value in given.items() if value is not None} | dict(self.engine)


def start(model: str | Path, options: EngineOptions) -> Any:
    """A ``vllm.LLM`` on this project's platform, inside of :func:`environment`.

    Raises:
        ConfigError: no such model, another platform, or options that vLLM does not take.
        UnsupportedError, CheckpointError: the model can't be served so.
    """
    name = _found(model)
    from vllm_neuron.vllm.adapter import get_adapter

    get_adapter()
    from vllm.platforms import current_platform

    if not current_platform.is_out_of_tree():
        raise ConfigError(
            "platform",
            current_platform.device_name,
            "vllm_neuron's own",
            "Set VLLM_NEURON_CPU_MODE before vLLM is imported; `onboard doctor` says what is in the way.",
        )
    from vllm import LLM

    try:
        with _quiet("vllm.renderers.base"), _Ranks():
            return LLM(name, **options.arguments())
    except ValueError as error:
        raise ConfigError("engine", _first_reason(error), "options and a model that vLLM takes") from error


@contextmanager
def environment(options: EngineOptions) -> Iterator[None]:
    """The variables of an engine whose core runs in this process; put back afterwards."""
    changes = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NEURON_KERNELS": options.kernels}
    with envs.changed(changes), NF.use_kernels(options.kernels):
        yield


class _Ranks:
    """A rank in a process of its own that did not start, of which vLLM 0.32 says so by a plain ``Exception``."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: Any) -> None:
        if kind is Exception:
            action = "The log above has the rank's own exception."
            raise ConfigError("ranks", str(error), "processes that start", action) from error


def _first_reason(error: ValueError) -> str:
    """The reason in pydantic's many lines, or the text itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    given = [line.partition(" [type=")[0].removeprefix("Value error, ") for line in lines if "[type=" in line]
    return (given or lines or [type(error).__name__])[0]


def _found(model: str | Path) -> str:
    """The model as vLLM takes it: a checkpoint folder, or an id of the hub.

    Raises:
        ConfigError: it can't be either.
    """
    folder = Path(model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError("model", str(model), "a checkpoint folder with a config.json")
    if not folder.is_dir() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", str(model)):
        raise ConfigError("model", str(model), "a checkpoint folder, or an id such as org/name")
    return str(model)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Hide a logger's warnings: vLLM warms chat templates up, and prints a traceback where there is no tokenizer."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
