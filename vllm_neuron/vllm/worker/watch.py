"""Looking at steps from outside: what runs is numbered and labelled, and whoever watches is told.

A step's number counts runs of the model since it was loaded, warm-up left out. Rows of the head may come from several
steps, and are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.snapshot.label import Span, StepLabel
from vllm_neuron.step import Step
from vllm_neuron.vllm.worker.inputs import Work


@dataclass(frozen=True)
class Part:
    """The rows of a tensor that belong to one step.

    Attributes:
        label: the step; its spans count from the first of ``rows``.
        rows: their indices in the tensor; other rows are padding, or another step's.
    """

    label: StepLabel
    rows: tuple[int, ...]


class Watcher:
    """Someone who is told of every step after warm-up; the methods of this class do nothing."""

    def begin(self, part: Part, step: Step) -> None:
        """A step is about to run."""

    def end(self, part: Part, step: Step, hidden_TH: Tensor) -> None:
        """A step has run."""

    def head(self, parts: Sequence[Part], rows: int) -> None:
        """The head is about to run on so many rows, padding included."""

    def logits(self, parts: Sequence[Part], hidden_RH: Tensor, logits_RV: Tensor) -> None:
        """The head has run; whoever keeps the logits copies them, for they are changed in place later."""

    def flush(self) -> None:
        """All steps of a scheduler step, and their logits, are done."""

    def warmed_up(self) -> None:
        """Warm-up is over."""

    def close(self) -> None:
        """The engine ends."""


class Watch:
    """Runs the model's steps and its head, and tells the watchers."""

    def __init__(self, model: NeuronModel) -> None:
        self.model = model
        self.watchers: list[Watcher] = []
        self.steps = 0
        self._last: dict[str, StepLabel] = {}

    def forward(self, work: Work, requests: Sequence[str]) -> Tensor:
        """Run a step; ``requests`` are the ids of its rows. Hidden states [T, H]."""
        positions = work.step.positions_T
        spans = tuple(
            Span(request, start, count, int(positions[start]))
            for request, start, count in zip(requests, work.starts, work.counts, strict=True)
        )
        label = StepLabel(self.steps, work.step.phase.value, spans)
        self.steps += 1
        self._last.update(dict.fromkeys(requests, label))
        part = Part(label, tuple(range(label.tokens)))
        for watcher in self.watchers:
            watcher.begin(part, work.step)
        hidden_TH = self.model.forward(work.step)
        for watcher in self.watchers:
            watcher.end(part, work.step, hidden_TH)
        return hidden_TH

    def logits(self, hidden_RH: Tensor, spans: Sequence[Span]) -> Tensor:
        """Run the head; ``spans`` say which of its rows are which tokens of the steps that ran last. [R, V]."""
        if not self.watchers:
            return self.model.compute_logits(hidden_RH)
        parts = self._parts(spans)
        for watcher in self.watchers:
            watcher.head(parts, hidden_RH.shape[0])
        logits_RV = self.model.compute_logits(hidden_RH)
        for watcher in self.watchers:
            watcher.logits(parts, hidden_RH, logits_RV)
        return logits_RV

    def _parts(self, spans: Sequence[Span]) -> list[Part]:
        by_step: dict[int, list[Span]] = {}
        for span in spans:
            by_step.setdefault(self._last[span.request].step, []).append(span)
        parts = []
        for some in by_step.values():
            label = self._last[some[0].request]
            moved: list[Span] = []
            rows: list[int] = []
            for span in some:
                moved.append(replace(span, start=len(rows)))
                rows += range(span.start, span.start + span.count)
            parts.append(Part(replace(label, spans=tuple(moved)), tuple(rows)))
        return parts

    def flush(self) -> None:
        """A scheduler step is done."""
        self._last.clear()
        for watcher in self.watchers:
            watcher.flush()

    def warmed_up(self) -> None:
        """Warm-up is over; steps are told from here on."""
        for watcher in self.watchers:
            watcher.warmed_up()

    def close(self) -> None:
        """The engine ends."""
        for watcher in self.watchers:
            watcher.close()


def cut(spans: Sequence[Span], start: int, count: int) -> list[Span]:
    """The spans of ``count`` rows from ``start`` on, counted from there."""
    found = []
    for span in spans:
        first, last = max(span.start, start), min(span.start + span.count, start + count)
        if first < last:
            found.append(Span(span.request, first - start, last - first, span.position + first - span.start))
    return found
