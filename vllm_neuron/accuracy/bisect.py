"""The first guilty module, found by running the package and the reference side by side.

In float32 the prompts run in every way that a runtime has (whole, padded, token by token, in chunks, batched, on two
ranks). The first way that leaves the reference gives the phase; there, layer by layer and block by block, inputs are
replaced by the reference's, so that what is wrong by itself is told from what is only wrong because its input is. What
no run shows (an eps that is too small for these activations) is looked for with small and large inputs; what only shows
in bfloat16, three-way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from vllm_neuron.accuracy.calls import HFModel
from vllm_neuron.accuracy.localize import Divergence, diverges, locate
from vllm_neuron.accuracy.modules import check_modules
from vllm_neuron.accuracy.record import encode
from vllm_neuron.accuracy.results import LevelResult, Outcome, Place, outcome_of
from vllm_neuron.accuracy.rig import Rig
from vllm_neuron.accuracy.target import Target
from vllm_neuron.accuracy.ways import DECODE, PREFILL, WAYS, Way
from vllm_neuron.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_RANKS = 4
Reference = Callable[[torch.dtype], HFModel]


@dataclass(frozen=True)
class WayResult:
    """One way of running the prompts in float32.

    Attributes:
        name: of the way.
        verdict: begins with the outcome.
        layer, block: where the free run leaves the reference first; None, "" when it does not.
        seconds: wall time.
    """

    name: str
    verdict: str
    layer: int | None = None
    block: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Bisection:
    """What a bisection found.

    Attributes:
        verdict: ``pass: ...`` or ``fail: ...``.
        place: the guilty module; None when there is none.
        ways: the ways that were run, in order; the last may have failed.
        levels: level 3 in each dtype that was reached.
        tokens: how many were compared.
        seconds: wall time.
    """

    verdict: str
    place: Place | None
    ways: tuple[WayResult, ...]
    levels: tuple[LevelResult, ...]
    tokens: int
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """The verdict's first word."""
        return outcome_of(self.verdict)

    def to_json(self) -> dict[str, Any]:
        """What ``json`` writes."""
        encoded: dict[str, Any] = encode(self)
        return encoded


def bisect(
    target: Target,
    reference: Reference,
    prompts: Sequence[Sequence[int]],
    *,
    dtypes: Sequence[str] = tuple(DTYPES),
    ways: Sequence[Way] = WAYS,
    block_ways: Sequence[Way] = (PREFILL, DECODE),
    progress: Callable[[str], None] = lambda what: None,
) -> Bisection:
    """Find the first guilty module.

    Args:
        target: what is tested.
        reference: gives the Hugging Face model in a dtype.
        prompts: token ids; one past every window and past position 256 shows the most.
        dtypes: ``float32``, ``bfloat16`` or both; the first that shows a fault ends the search.
        ways: how whole runs go, in float32. block_ways: how single blocks run, in each dtype.
        progress: told what is being done.

    Raises:
        ConfigError: another dtype, no prompt, an empty one.
        UnsupportedError: the reference's layers can't be looked into.
    """
    for name in dtypes:
        if name not in DTYPES:
            raise ConfigError("dtype", name, " or ".join(DTYPES))
    begin = time.perf_counter()
    gold = reference(torch.float32)
    run: list[WayResult] = []
    levels: list[LevelResult] = []
    place: Place | None = None
    if "float32" in dtypes:
        rig = Rig(target, gold, prompts)
        place = _runs(rig, ways, run, progress)
        if place is None:
            progress("modules in float32")
            levels.append(check_modules(rig, block_ways))
            place = levels[-1].place
    if place is None and "bfloat16" in dtypes:
        progress("modules in bfloat16")
        rig = Rig(target, gold, prompts, baseline=reference(torch.bfloat16), dtype=torch.bfloat16)
        levels.append(check_modules(rig, block_ways))
        place = levels[-1].place
    verdict = _verdict(place, run, levels)
    tokens = sum(len(ids) for ids in prompts)
    return Bisection(verdict, place, tuple(run), tuple(levels), tokens, time.perf_counter() - begin)


def _runs(rig: Rig, ways: Sequence[Way], run: list[WayResult], progress: Callable[[str], None]) -> Place | None:
    """Whole runs; the place where the first one that leaves the reference does so by itself."""
    for way in ways:
        progress(f"{way.name} in float32")
        begin = time.perf_counter()
        way, found, words = _diverges(rig, way)
        seconds = time.perf_counter() - begin
        if found is None:
            run.append(WayResult(way.name, words, seconds=seconds))
            continue
        run.append(WayResult(way.name, f"fail: {_words(found)}", found.layer, found.name, seconds))
        progress(f"{way.name}: the guilty block")
        return locate(rig, way, found) or _propagated(rig, way, found)
    return None


def _diverges(rig: Rig, way: Way) -> tuple[Way, Divergence | None, str]:
    """A free run, on the next larger number of ranks where the model's heads can't be divided by this one.

    Returns:
        The way that was run, where it leaves the reference, and a verdict for when it does not.
    """
    refusal = ""
    for ranks in range(way.ranks, MOST_RANKS + 1) if way.ranks > 1 else (1,):
        tried = way if ranks == way.ranks else replace(way, name=f"TP {ranks}", ranks=ranks)
        try:
            found, last = diverges(rig, tried)
            return tried, found, f"pass: logits agree, {last.words}"
        except ConfigError as error:
            if ranks == 1 or "tensor_parallel_size" not in str(error):
                raise
            refusal = refusal or str(error)
    return way, None, f"not run: {refusal}"


def _words(found: Divergence) -> str:
    return f"leaves the reference at {found.name} ({found.finding.words})"


def _propagated(rig: Rig, way: Way, found: Divergence) -> Place:
    """No block is wrong by itself, and yet the run is."""
    theirs = next((pair.theirs for pair in rig.pairs if pair.ours == found.name), "logits")
    row = found.finding.row
    return Place(
        layer=found.layer,
        block="layer" if found.layer is not None else found.name,
        ours=found.name,
        theirs=theirs,
        kind="propagated",
        evidence=f"{found.finding.words}; with the reference's input every block agrees",
        phase=way.name,
        position=None if row is None else rig.gold.position(row),
    )


def _verdict(place: Place | None, run: Sequence[WayResult], levels: Sequence[LevelResult]) -> str:
    if place is not None:
        return f"fail: {place.words()}"
    failed = next((level.verdict for level in levels if level.outcome == "fail"), None)
    if failed is not None:
        return failed
    ran = sum(outcome_of(way.verdict) == "pass" for way in run)
    return f"pass: {ran} ways and {sum(len(level.blocks) for level in levels)} blocks agree"
