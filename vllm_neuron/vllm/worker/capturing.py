"""``neuron_config.tensor_capture`` in the runner: hooks installed at load, whose tensors go to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.inspection_config import TensorCapture
from vllm_neuron.snapshot.capture import ModuleHooks, call_tensors, output_tensors
from vllm_neuron.snapshot.files import CaptureWriter
from vllm_neuron.snapshot.patterns import compile_pattern
from vllm_neuron.step import Step
from vllm_neuron.vllm.worker.tap import picked
from vllm_neuron.vllm.worker.watch import Part, Watcher

FIELD = "neuron_config.tensor_capture.modules"


class FileCapture(Watcher):
    """Captures to files on this rank.

    Args:
        model: loaded; no step has run yet.
        config: what to capture.
        rank: of this process.
        about: what the index says of the run.

    Raises:
        ConfigError: a pattern that fits no module, or a folder that is not empty.
    """

    def __init__(self, model: nn.Module, config: TensorCapture, rank: int, about: Mapping[str, Any]) -> None:
        self.config = config
        self.hooks = ModuleHooks(model, config.modules, self._call, FIELD)
        writes = config.ranks is None or rank in config.ranks
        self.writer = CaptureWriter(config, rank, about, self.hooks.names) if writes else None
        self._parts: Sequence[Part] = ()
        self._rows = 0

    def warmed_up(self) -> None:
        """Refuse patterns whose modules are never called.

        Raises:
            ConfigError: naming the pattern.
        """
        for pattern in self.config.modules:
            fits = compile_pattern(pattern, FIELD)
            if not any(fits.fullmatch(name) for name in self.hooks.called):
                raise ConfigError(
                    FIELD,
                    pattern,
                    "modules that are called",
                    "A fused operation reads the weights of these directly; capture the block that they are in.",
                )

    def begin(self, part: Part, step: Step) -> None:
        """The step that the next calls belong to."""
        self._select((part,), step.tokens)
        if self._parts and self.writer is not None:
            self.writer.begin(part.label.step, step.token_ids_T[: part.label.tokens].tolist())

    def head(self, parts: Sequence[Part], rows: int) -> None:
        """The rows that the next calls are given."""
        self._select(parts, rows)

    def _select(self, parts: Sequence[Part], rows: int) -> None:
        steps = self.config.steps
        idle = self.writer is None or self.writer.stopped
        self._parts = () if idle else [part for part in parts if steps is None or part.label.step in steps]
        self._rows = rows

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        for part in self._parts:
            assert self.writer is not None
            given = call_tensors(args, kwargs) if self.config.tensors != "outputs" else {}
            made = output_tensors(output) if self.config.tensors != "inputs" else ()
            self.writer.add(
                part.label,
                name,
                {key: picked(value, part, self._rows) for key, value in given.items()},
                [picked(value, part, self._rows) for value in made],
            )

    def flush(self) -> None:
        """Write what a scheduler step gave."""
        self._parts = ()
        if self.writer is not None:
            self.writer.flush()

    def close(self) -> None:
        """Write the index."""
        if self.writer is not None:
            self.writer.close()
