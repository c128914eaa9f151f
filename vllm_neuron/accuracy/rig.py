"""A package and its reference side by side in one dtype: runs of ours on any number of ranks, judges for each block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.calls import HFModel
from vllm_neuron.accuracy.gold import TIE, Gold
from vllm_neuron.accuracy.judge import BAR, SLACK, ExactJudge, Finding, Judge, ThreeWayJudge
from vllm_neuron.accuracy.observed import Observed, Runner
from vllm_neuron.accuracy.pairs import Pair, find_pairs
from vllm_neuron.accuracy.target import Target
from vllm_neuron.accuracy.ways import Way
from vllm_neuron.errors import ConfigError
from vllm_neuron.parallel import Group, run_in_threads

# BF16 rounds this much; a token whose block moves many times as far as others for it stands at a tie of a router.
BF16_ROUNDING, UNSTEADY, DRAWS = 2.0**-8, 10.0, 8
HEAD = "head"


@dataclass(frozen=True)
class Ran:
    """One run: what was seen on each rank, and each rank's model."""

    ranks: list[Observed]
    models: list[Any]

    @property
    def first(self) -> Observed:
        """The first rank's, whose blocks' outputs are whole."""
        return self.ranks[0]

    @property
    def logits(self) -> Tensor:
        """float32 [R, V]; the model was run whole."""
        found = self.first.logits
        assert found is not None
        return found


class Rig:
    """Both sides, for some prompts.

    Args:
        target: what is tested.
        gold: the reference in float32.
        prompts: token ids of each; none empty.
        baseline: the reference in ``dtype``, when that is not float32.
        dtype: of the target.

    Attributes:
        pairs: our modules and their counterparts, in the order of the model. alone: our blocks that have none.

    Raises:
        ConfigError: no prompt, an empty one, or no baseline.
        UnsupportedError: the reference's layers can't be looked into.
    """

    def __init__(
        self,
        target: Target,
        gold: HFModel,
        prompts: Sequence[Sequence[int]],
        *,
        baseline: HFModel | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not prompts or not all(prompts):
            raise ConfigError("prompts", [len(ids) for ids in prompts], "at least one, none of them empty")
        if (baseline is None) != (dtype == torch.float32):
            raise ConfigError("baseline", baseline is not None, f"{dtype != torch.float32}, with a target in {dtype}")
        self.target, self.dtype, self.prompts = target, dtype, [list(ids) for ids in prompts]
        self.model = target.load(dtype)
        self.sources = target.sources(self.model)
        self.pairs, self.alone = find_pairs(self.model, self.sources, gold)
        self.head = head_of(gold)
        asked = [*self.pairs, *([self.head] if self.head else [])]
        self.gold = Gold(gold, self.prompts, asked)
        self.baseline = None if baseline is None else Gold(baseline, self.prompts, asked)

    @property
    def layers(self) -> list[Pair]:
        """Whole layers."""
        return [pair for pair in self.pairs if pair.whole]

    def inner(self, layer: int) -> list[Pair]:
        """The blocks of a layer."""
        return [pair for pair in self.pairs if pair.layer == layer and not pair.whole]

    @cached_property
    def norms(self) -> list[Pair]:
        """Blocks outside the layers that have counterparts: the last norm."""
        return [pair for pair in self.pairs if pair.layer is None]

    def run(
        self,
        way: Way,
        names: Sequence[str],
        fed: Mapping[str, Tensor] | None = None,
        *,
        hidden: Tensor | None = None,
        watch: str | None = None,
        alone: str | None = None,
    ) -> Ran:
        """Run ours one way; see :meth:`~vllm_neuron.accuracy.observed.Runner.run`."""
        if way.ranks == 1:
            seen = Runner(self.model, self.prompts, names).run(way, fed, hidden=hidden, watch=watch, alone=alone)
            return Ran([seen], [self.model])

        def work(group: Group) -> tuple[Observed, Any]:
            model = self.target.load(self.dtype)
            seen = Runner(model, self.prompts, names).run(way, fed, hidden=hidden, watch=watch, alone=alone)
            return seen, model

        both = run_in_threads(way.ranks, work)
        return Ran([seen for seen, _ in both], [model for _, model in both])

    def fed(self, pair: Pair, scale: float = 1.0) -> Tensor | None:
        """[R, H]: what the counterpart was given, ``scale`` times as large, rounded to the target's dtype."""
        hidden = self.gold.hidden(pair)
        return None if hidden is None else (hidden * scale).to(self.dtype).float()

    def expected(self, pair: Pair, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the counterpart gives for ``hidden`` in float32, and in the target's dtype."""
        gold = self.gold.at(pair, hidden)
        return gold, None if self.baseline is None else self.baseline.at(pair, hidden)

    def compare(
        self, pair: Pair, ours: Tensor, hidden: Tensor, known: tuple[Tensor, Tensor | None] | None = None
    ) -> tuple[Finding, Judge]:
        """Judge a block's output for an input.

        Args:
            pair: the block and its counterpart.
            ours: [R, ...], what the block gave for ``hidden``.
            hidden: its input.
            known: what :meth:`expected` gives, when it is known already.

        Returns:
            The finding, and the judge, which serves for what is inside the block too.
        """
        expected, baseline = known or self.expected(pair, hidden)
        judge: Judge = ExactJudge() if baseline is None else ThreeWayJudge()
        finding = judge(ours, expected, baseline, pair.ours)
        if finding.ok:
            return finding, judge
        # Only now is it worth the time to see how steady the block is.
        if baseline is None:
            moved = self.gold.moved(pair, hidden)
            steady = moved < TIE
            # A block that has no steady rows to speak of is no router at a tie.
            judge = ExactJudge((SLACK * moved).clamp_min(BAR), steady if steady.float().mean() > 0.5 else None)
        else:
            moved = self.gold.moved(pair, hidden, BF16_ROUNDING, DRAWS)
            judge = ThreeWayJudge(moved < UNSTEADY * moved.median())
        return judge(ours, expected, baseline, pair.ours), judge

    def free(self, name: str, ours: Tensor, expected: Tensor) -> Finding:
        """Judge rows of a free run in float32: rounding errors may have grown on the way.

        Args:
            name: the reference's module, ``""`` for the logits.
            ours, expected: [R, ...].
        """
        finding = ExactJudge()(ours, expected)
        if finding.ok or name not in self.gold.growth:
            return finding
        growth = self.gold.growth[name]
        return ExactJudge((SLACK * growth).clamp_min(BAR), growth < TIE)(ours, expected)


def head_of(hf: HFModel) -> Pair | None:
    """The output head and its counterpart; None when it has none."""
    module = hf.model.get_output_embeddings()
    name = next((name for name, each in hf.model.named_modules() if each is module), None)
    return None if module is None or name is None else Pair(HEAD, name)
