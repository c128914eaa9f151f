"""One wrong block, both sides of it in full: what explanations look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.gold import Gold, Inside
from vllm_neuron.accuracy.judge import Finding, Judge
from vllm_neuron.accuracy.observed import Event, Observed
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.model.loading.plan import Source

Pick = Callable[[Event], Tensor]
Look = Callable[[Inside], Tensor | None]


@dataclass(frozen=True)
class Part:
    """What in a block is wrong.

    Attributes:
        name: e.g. ``rotary``; "" when it could not be told.
        evidence: in words.
        row: first row where it shows.
    """

    name: str
    evidence: str = ""
    row: int | None = None


UNKNOWN = Part("")


@dataclass(frozen=True)
class Scene:
    """A block that is wrong though it was given the reference's input.

    Attributes:
        pair: the block and its counterpart.
        modules: the block on each rank.
        runs: what was seen on each rank.
        gold: the reference.
        expected: what happened in the counterpart, prompt by prompt; its input was the block's.
        baseline: the same in the target's dtype, in bfloat16.
        sources: parameter of ours -> where in the checkpoint it came from.
        judge: compares rows.
    """

    pair: Pair
    modules: Sequence[Any]
    runs: Sequence[Observed]
    gold: Gold
    expected: Sequence[Inside]
    baseline: Sequence[Inside] | None
    sources: Mapping[str, Source]
    judge: Judge

    @property
    def module(self) -> Any:
        """The block on the first rank."""
        return self.modules[0]

    @property
    def total(self) -> int:
        """R."""
        return self.gold.edges[-1]

    def events(self, *ops: str) -> list[list[Event]]:
        """The events of some operations, rank by rank."""
        return [[event for event in run.events if event.op in ops] for run in self.runs]

    def rows(self, events: Sequence[Sequence[Event]], pick: Pick, join: str = "cat") -> Tensor | None:
        """What some events of each rank show, as rows [R, ...]; None when there are no such events.

        Args:
            events: rank by rank.
            pick: [T, ...] of one event.
            join: ``cat``: the ranks hold parts of dimension 1; ``sum``: parts of a sum; ``first``: all the same.
        """
        if not all(events):
            return None
        ranks = [self._of_rank(each, pick) for each in events]
        if join == "first" or len(ranks) == 1:
            return ranks[0]
        return torch.cat(ranks, dim=1) if join == "cat" else torch.stack(ranks).sum(0)

    def _of_rank(self, events: Sequence[Event], pick: Pick) -> Tensor:
        found: Tensor | None = None
        for event in events:
            value = pick(event).detach().float()
            if found is None:
                found = torch.full((self.total, *value.shape[1:]), torch.nan, dtype=torch.float32)
            real = event.rows >= 0
            found[event.rows[real]] = value[real]
        assert found is not None
        return found

    def output(self) -> Tensor:
        """[R, H] that the block gave."""
        return self.runs[0].outputs[self.pair.ours]

    def theirs(self, look: Look) -> tuple[Tensor, Tensor | None] | None:
        """What the reference has, as rows [R, ...], and its baseline; None when it does not show it."""
        sides = []
        for side in (self.expected, self.baseline):
            found = None if side is None else [look(inside) for inside in side]
            sides.append(None if found is None or any(x is None for x in found) else torch.cat(found))  # type: ignore[arg-type]
        expected, baseline = sides
        if expected is None or (self.baseline is not None and baseline is None):
            return None
        return expected.float(), None if baseline is None else baseline.float()

    def compare(self, ours: Tensor | None, theirs: tuple[Tensor, Tensor | None] | None, name: str) -> Finding | None:
        """The comparison, None when a side is missing."""
        if ours is None or theirs is None:
            return None
        return self.judge(ours, theirs[0], theirs[1], name)

    def modules_of(self, parameter: str) -> list[str]:
        """Hugging Face modules from whose parameters one of the block's own was loaded, in order."""
        source = self.sources.get(f"{self.pair.ours}.{parameter}")
        found = []
        for key in source.keys if source else ():
            origin = self.gold.hf.origin.get(key, key)
            names = (origin,) if isinstance(origin, str) else tuple(origin)
            found += [name.rpartition(".")[0] for name in names]
        return list(dict.fromkeys(found))

    def outputs_of(self, names: Sequence[str]) -> tuple[Tensor, Tensor | None] | None:
        """Outputs of modules inside the counterpart, side by side."""

        def look(inside: Inside) -> Tensor | None:
            found = [inside.output_of(name) for name in names]
            return None if not found or any(x is None for x in found) else torch.cat(found, dim=-1)  # type: ignore[arg-type]

        return self.theirs(look)

    def where(self, row: int | None) -> str:
        """``from position 257 on``, roughly: the first row's position."""
        return "" if row is None else f", first at position {self.gold.position(row)}"


def constant(difference: Tensor) -> bool:
    """Rows [R, ...] that are all the same and not zero."""
    first = difference[:1]
    size = first.norm()
    return bool(size > 0) and bool((difference - first).norm(dim=-1).max() < 1e-3 * size)
