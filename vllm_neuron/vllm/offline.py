"""An engine in this process as a source of logits: what is scored is what is served.

Every prompt goes through vLLM's scheduler and the runner's own steps. Prefilled positions get their logits because the
request asks for prompt log-probabilities; the decoded ones are teacher-forced by a logits processor that allows the
given next id only. The logits are taken at the model's head, before any processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor

from vllm_neuron.accuracy.sources import Scored

# Number of the request, position of the first row, rows [R, V] float32: a piece of the logits as it was computed.
OnRows = Callable[[int, int, Tensor], None]


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is started; each field is vLLM's option of that name unless said otherwise.

    Attributes:
        dtype: ``float32`` or ``bfloat16``.
        max_model_len: tokens of the longest prompt, and one more.
        max_num_batched_tokens: chunk size of prefills; vLLM's default when None.
        max_num_seqs: rows of a decode, and rows of the head at a time.
        tensor_parallel_size: ranks, each a process of its own when more than one.
        kernels: ``auto``, ``off`` or ``require`` (``VLLM_NEURON_KERNELS``).
        enable_prefix_caching: as served; off by default, so that equal prefixes are computed each time.
        kv_cache_bytes: of each rank.
        neuron_config: the plugin's own.
        engine: any further options of ``vllm.LLM``.
    """

    dtype: str = "bfloat16"
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 32
    tensor_parallel_size: int = 1
    kernels: Literal["auto", "off", "require"] = "auto"
    enable_prefix_caching: bool = False
    kv_cache_bytes: int | None = None
    neuron_config: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)


class EngineSource:
    """A :class:`vllm_neuron.accuracy.sources.LogitsSource` over one engine; a context manager.

    Args:
        model: checkpoint folder or model id.
        options: of the engine.
        kv: read the cache out after each prompt.
        factory: ``package.module:Class`` of a model package that is not installed; ``paths`` go in front of
            ``sys.path`` for it.
    """

    def __init__(
        self,
        model: str | Path,
        options: EngineOptions | None = None,
        *,
        kv: bool = True,
        factory: str | None = None,
        paths: Sequence[Path] = (),
    ) -> None:
        raise NotImplementedError

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`."""
        raise NotImplementedError

    def stream(self, prompts: Sequence[tuple[Sequence[int], int]], on_rows: OnRows) -> list[Scored]:
        """Score prompts side by side, as the scheduler batches them, without keeping their logits.

        Args:
            prompts: ``(ids, steps)`` of each, as in :meth:`score`.
            on_rows: gets each piece of logits when it is computed; the pieces of one prompt come in order.

        Returns:
            One for each prompt, ``logits_TV`` None.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Shut the engine down; another one can be started in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
