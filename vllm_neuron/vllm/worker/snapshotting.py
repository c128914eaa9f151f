"""``neuron_config.input_snapshot`` in the runner: the steps that a rule picks, with everything they read."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.inspection_config import InputSnapshot
from vllm_neuron.model.kv_cache import KVBinding
from vllm_neuron.snapshot.identity import checkpoint_digest
from vllm_neuron.snapshot.inputs import HeadCall, write_inputs, write_outputs
from vllm_neuron.snapshot.label import StepLabel
from vllm_neuron.step import Step
from vllm_neuron.vllm.worker.watch import Part, Watcher

logger = logging.getLogger(__name__)


def same_request(given: str, internal: str) -> bool:
    """Whether a runner's request is the one that a client named.

    vLLM 0.32 adds eight random characters; its server puts ``cmpl-`` or ``chatcmpl-`` in front of the client's
    ``X-Request-Id`` and, for completions, the number of the prompt behind it.
    """
    outer = internal.rpartition("-")[0] or internal
    names = {internal, outer}
    names |= {re.sub(r"^(cmpl|chatcmpl)-", "", name) for name in list(names)}
    names |= {re.sub(r"-\d+$", "", name) for name in list(names)}
    return given in names


@dataclass
class _Taken:
    """A step whose outputs are awaited."""

    folder: Path
    label: StepLabel
    hidden_TH: Tensor | None = None
    heads: list[HeadCall] = field(default_factory=list)


class InputSnapshots(Watcher):
    """Takes snapshots on this rank.

    Args:
        config: the rules.
        rank: of this process.
        about: of the run, for ``meta.json``.
        bindings: gives the caches, which are bound after the model was loaded.
        checkpoint: folder of the weights, whose digest is taken with the first snapshot.

    Raises:
        ConfigError: the folder has snapshots of this rank already, of an earlier run.
    """

    def __init__(
        self,
        config: InputSnapshot,
        rank: int,
        about: Mapping[str, Any],
        bindings: Callable[[], Mapping[str, KVBinding]],
        checkpoint: Path,
    ) -> None:
        self.config, self.rank, self.bindings = config, rank, bindings
        self.about = {**about, "model": str(checkpoint.resolve())}
        self.checkpoint = checkpoint
        earlier = sorted(Path(config.dir).glob(f"step-*/rank{rank}"))
        if earlier:
            hint = f"It has {earlier[0].parent.name} of an earlier run; name another one."
            raise ConfigError("neuron_config.input_snapshot.dir", config.dir, "a folder without snapshots", hint)
        self.writes = config.ranks is None or rank in config.ranks
        self.count = 0
        self.stopped = False
        self._taken: dict[int, _Taken] = {}

    def _picks(self, label: StepLabel, ids: list[int]) -> bool:
        c = self.config
        return bool(
            (c.steps is not None and label.step in c.steps)
            or (c.tokens is not None and not set(c.tokens).isdisjoint(ids))
            or (c.requests is not None and any(same_request(g, r) for g in c.requests for r in label.requests))
        )

    def begin(self, part: Part, step: Step) -> None:
        """Write the inputs when a rule picks the step."""
        label = part.label
        if self.stopped or not self._picks(label, step.token_ids_T[: label.tokens].tolist()):
            return
        if self.count == self.config.max_captures:
            self.stopped = True
            logger.info("input_snapshot: %d steps are taken, which is max_captures; no more will be", self.count)
            return
        self.count += 1
        if not self.writes:
            return
        if "weights" not in self.about:
            self.about["weights"] = checkpoint_digest(self.checkpoint)
        about = {**self.about, "rank": self.rank, "threads": torch.get_num_threads()}
        folder = Path(self.config.dir) / f"step-{label.step:06d}" / f"rank{self.rank}"
        try:
            write_inputs(folder, label, step, self.bindings(), about)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._stop(label, error)
            return
        self._taken[label.step] = _Taken(folder, label)

    def end(self, part: Part, step: Step, hidden_TH: Tensor) -> None:
        """Keep the hidden states of the tokens."""
        taken = self._taken.get(part.label.step)
        if taken is not None:
            taken.hidden_TH = hidden_TH[: part.label.tokens].clone()

    def logits(self, parts: Sequence[Part], hidden_RH: Tensor, logits_RV: Tensor) -> None:
        """Keep the logits of the steps that are taken."""
        for part in parts:
            taken = self._taken.get(part.label.step)
            if taken is not None:
                rows = logits_RV[torch.tensor(part.rows, dtype=torch.int64)].clone()
                tokens = tuple(_tokens(taken.label, part.label))
                taken.heads.append(HeadCall(hidden_RH.shape[0], part.rows, tokens, rows))

    def flush(self) -> None:
        """Write the outputs."""
        for taken in self._taken.values():
            if taken.hidden_TH is None or self.stopped:
                continue
            try:
                write_outputs(taken.folder, taken.hidden_TH, taken.heads)
            except OSError as error:
                self._stop(taken.label, error)
                continue
            logger.info("input_snapshot: step %d is in %s", taken.label.step, taken.folder)
        self._taken = {}

    def _stop(self, label: StepLabel, error: OSError) -> None:
        self.stopped = True
        logger.warning("input_snapshot: stops, step %d could not be written: %s", label.step, error)


def _tokens(whole: StepLabel, rows: StepLabel) -> list[int]:
    """Which tokens of a step some rows of the head are."""
    found: list[int] = []
    for span in rows.spans:
        own = next(s for s in whole.spans if s.request == span.request)
        first = own.start + span.position - own.position
        found += range(first, first + span.count)
    return found
