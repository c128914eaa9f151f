"""What a step, and the rows of a tensor in it, belong to: step number, phase, requests and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """Neighbouring rows of a tensor that are neighbouring tokens of one request.

    Attributes:
        request: its id.
        start: index of the first row in the tensor.
        count: rows.
        position: position in the request of the first row's token; the others follow it.
    """

    request: str
    start: int
    count: int
    position: int

    def to_json(self) -> list[Any]:
        """``[request, start, count, position]``."""
        return [self.request, self.start, self.count, self.position]


@dataclass(frozen=True)
class StepLabel:
    """One run of a model on a step.

    Attributes:
        step: number of the run since the model was loaded, from 0; warm-up is not counted.
        phase: ``prefill``, ``extend`` or ``decode``; None where a model is called without a step.
        spans: which rows are which tokens; rows beyond the last span are padding.
    """

    step: int
    phase: str | None = None
    spans: tuple[Span, ...] = ()

    @property
    def tokens(self) -> int:
        """Rows that are tokens; padding follows them."""
        return max((span.start + span.count for span in self.spans), default=0)

    @property
    def requests(self) -> Sequence[str]:
        """Ids of the requests in the step, in its order."""
        return [span.request for span in self.spans]
