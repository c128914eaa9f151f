"""What a planted fault is, and where it must be found: stated before it is looked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tests.vllm_neuron.accuracy.faults.models import Planted, subject
from vllm_neuron.accuracy.bisect import Bisection, bisect
from vllm_neuron.accuracy.results import Place


@dataclass(frozen=True)
class Where:
    """The place that must be named.

    Attributes:
        layer, block, part, phase: as in :class:`~vllm_neuron.accuracy.results.Place`.
        position: first position where it shows; None when it is not held against the place.
        dtype: in which it shows.
    """

    layer: int | None
    block: str
    part: str
    phase: str = "prefill"
    position: int | None = None
    dtype: str = "float32"

    def met(self, place: Place | None) -> bool:
        """Whether a place is this one."""
        if place is None or place.kind != "local":
            return False
        named = (place.layer, place.block, place.part, place.phase)
        return named == (self.layer, self.block, self.part, self.phase) and self.position in (None, place.position)

    def words(self) -> str:
        """As a place says it."""
        return Place(self.layer, self.block, "", "", phase=self.phase, position=self.position, part=self.part).words()


@dataclass(frozen=True)
class Fault:
    """One mistake of a port, a kernel or a runtime.

    Attributes:
        name: in words.
        model: which tiny model.
        where: the place that must be named.
        plant: done to each loaded model.
        inside: a context in which models run.
    """

    name: str
    model: str
    where: Where
    plant: Callable[[Any], None] | None = None
    inside: Callable[[], AbstractContextManager[None]] = nullcontext

    def look(self) -> Bisection:
        """Run the search that users run."""
        made = subject(self.model)
        with self.inside():
            return bisect(Planted(made, self.plant), made.reference, made.prompts)
