"""``neuron_config.tensor_replacement`` in the runner: captured tensors fed at modules, step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from vllm_neuron.errors import ConfigError, UnsupportedError, nearest
from vllm_neuron.model.inspection_config import TensorReplacement
from vllm_neuron.snapshot.index import CaptureFolder, StepFile
from vllm_neuron.snapshot.label import StepLabel
from vllm_neuron.snapshot.patterns import match_modules
from vllm_neuron.snapshot.replacement import At, install_replacement
from vllm_neuron.step import Step
from vllm_neuron.vllm.worker.watch import Part, Watcher

logger = logging.getLogger(__name__)
FIELD = "neuron_config.tensor_replacement"


class FileReplacement(Watcher):
    """Feeds tensors of a capture folder to this rank's modules, in the steps of the same number.

    Args:
        model: loaded.
        config: what to feed.
        rank: of this process; its own folder is read.

    Raises:
        ConfigError: a pattern that fits no module, a folder that can't be read, or one without a module or this rank.
    """

    def __init__(self, model: nn.Module, config: TensorReplacement, rank: int) -> None:
        self.config = config
        folder = CaptureFolder.open(config.dir, f"{FIELD}.dir")
        if rank not in folder.ranks:
            raise ConfigError(f"{FIELD}.dir", config.dir, f"a capture of rank {rank} too", "Capture all ranks.")
        self.files = {step.label.step: step for step in folder.steps if step.rank == rank}
        self.counts: dict[str, int] = {}
        self._queues: dict[str, list[Tensor]] = {}
        modules = match_modules(model, config.modules, f"{FIELD}.modules")
        at: At = "input" if config.at == "input" else "output"
        for name, module in modules.items():
            self._check_captured(folder, name)
            install_replacement(module, name, partial(self._next, name), at=at)
        self.names = tuple(modules)

    def _check_captured(self, folder: CaptureFolder, name: str) -> None:
        if name not in folder.modules:
            raise ConfigError(f"{FIELD}.modules", name, f"one in {folder.path}", nearest(name, folder.modules))
        side = "in." if self.config.at == "input" else "out."
        calls = [call for file in self.files.values() for call in file.calls if call.module == name]
        if not all(any(key.startswith(side) for key in call.shapes) for call in calls):
            kept = "inputs" if self.config.at == "input" else "outputs"
            raise ConfigError(f"{FIELD}.at", self.config.at, f"{kept} of {name} in {folder.path}", "Capture both.")

    def _next(self, name: str) -> Tensor | None:
        queue = self._queues.get(name)
        if not queue:
            return None
        self.counts[name] = self.counts.get(name, 0) + 1
        return queue.pop(0)

    def begin(self, part: Part, step: Step) -> None:
        """Read the step's tensors.

        Raises:
            ConfigError: the captured step ran other tokens.
        """
        self._queues = {}
        file = self._file(part.label)
        if file is None:
            return
        ids = tuple(step.token_ids_T[: part.label.tokens].tolist())
        if file.token_ids != ids:
            raise ConfigError(
                f"{FIELD}.dir",
                f"step {part.label.step} ran {len(file.token_ids)} ids {list(file.token_ids[:8])}...",
                f"the {len(ids)} ids {list(ids[:8])}... that this step runs",
                "Send the same requests in the same order to both runs.",
            )
        self._load(file)

    def head(self, parts: Sequence[Part], rows: int) -> None:
        """The head's rows are fed where they belong to one step.

        Raises:
            UnsupportedError: rows of several steps at once.
        """
        if len(parts) > 1 and any(self._queues.get(name) for name in self.names):
            raise UnsupportedError(FIELD, "a head that runs for several steps at once", "one request at a time")

    def _file(self, label: StepLabel) -> StepFile | None:
        chosen = self.config.steps is None or label.step in self.config.steps
        return self.files.get(label.step) if chosen else None

    def _load(self, file: StepFile) -> None:
        for name in self.names:
            records = file.records(name)
            self._queues[name] = [r.output if self.config.at == "output" else r.input for r in records]

    def close(self) -> None:
        """Say what was fed."""
        logger.info("tensor_replacement: %s", self.counts or "no step was fed")
