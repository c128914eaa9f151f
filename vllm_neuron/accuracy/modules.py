"""Level 3: each block of a package against its Hugging Face module, given the same input.

In float32 the bar is a relative error of 1e-5 for each token, wider only where the reference itself makes more of the
last bit of its input. In bfloat16 the comparison is three-way. Blocks run in prefill and in decode; the reference is
the same for both, for a token's output does not depend on the way. A layer's tensors are held at a time.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.explain import Part
from vllm_neuron.accuracy.judge import ExactJudge, Finding, ThreeWayJudge
from vllm_neuron.accuracy.localize import explain, locate_embedding, locate_head, place_of
from vllm_neuron.accuracy.observed import EMBED
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.accuracy.results import BlockResult, LevelResult, Outcome, Place, worst
from vllm_neuron.accuracy.rig import HEAD, Rig
from vllm_neuron.accuracy.tables import check_rotary
from vllm_neuron.accuracy.ways import DECODE, PREFILL, Way
from vllm_neuron.nn import MoE

# Inputs as they came; so small that an eps shows; so large that gelu and its tanh form part. A router's scores saturate
# when loud.
PLAIN, TINY, LOUD, ROUTED = 1.0, 1e-3, 6.0, 2.0
# Blocks that end elsewhere in the two models (a residual inside, say) differ by far more than rounding or an eps does.
ELSEWHERE, ELSEWHERE_BF16 = 1e-2, 0.2


def scales_of(block: torch.nn.Module) -> tuple[float, ...]:
    """The scales of its input at which a block is compared in float32.

    The rounding of an attention's scores grows with the square of its input: it gets nothing loud. Small inputs give a
    router scores that are nearly the same: it gets nothing small.
    """
    inner = list(block.modules())
    if any(hasattr(module, "bind") for module in inner):
        return (PLAIN, TINY)
    return (PLAIN, ROUTED) if any(isinstance(module, MoE) for module in inner) else (PLAIN, TINY, LOUD)


def check_modules(rig: Rig, ways: Sequence[Way] = (PREFILL, DECODE)) -> LevelResult:
    """Compare all blocks that have a counterpart.

    Args:
        rig: both sides.
        ways: how blocks are run; blocks without a cache run the first way alone.

    Returns:
        Level 3, with the place of the first block that fails.
    """
    begin = time.perf_counter()
    found = list(_checked(rig, ways))
    outcome = worst(each.result.outcome for each in found)
    place = next((each.place for each in found if each.place is not None), None)
    failed = sum(each.result.outcome == "fail" for each in found)
    verdict = (
        f"{outcome}: {failed} of {len(found)} blocks differ" if failed else f"{outcome}: {len(found)} blocks agree"
    )
    if place is not None:
        verdict = f"fail: {place.words()}; {failed} of {len(found)} blocks differ"
    notes = [f"no Hugging Face module of their own: {', '.join(rig.alone)}"] if rig.alone else []
    if any(_tied(rig, layer) for layer in rig.layers):
        notes.append(
            "in bfloat16 rounding decides ties of a router: whole layers with one are compared in float32 alone"
        )
    seconds = time.perf_counter() - begin
    return LevelResult(
        verdict, 3, blocks=tuple(e.result for e in found), place=place, notes=tuple(notes), seconds=seconds
    )


def _tied(rig: Rig, layer: Pair) -> bool:
    """A whole layer whose router's input is rounded otherwise on both sides."""
    inner = rig.model.get_submodule(layer.ours).modules()
    return rig.baseline is not None and any(isinstance(module, MoE) for module in inner)


@dataclass(frozen=True)
class Checked:
    """One result, the place of what it found, and whether it is grossly off for an input as it comes."""

    result: BlockResult
    place: Place | None = None
    gross: bool = False


def _checked(rig: Rig, ways: Sequence[Way]) -> Iterator[Checked]:
    yield from _embedding(rig, ways[0])
    yield from (Checked(result) for result in check_rotary(rig))
    for layer in rig.layers:
        assert layer.layer is not None
        around = [] if _tied(rig, layer) else list(_blocks(rig, layer, [layer], ways))
        agrees = bool(around) and all(each.result.passed for each in around)
        # A wrong block would make its layer wrong: one that is grossly so beside it has a counterpart that ends
        # elsewhere.
        inner = _blocks(rig, layer, rig.inner(layer.layer), ways)
        yield from (each for each in inner if not (agrees and each.gross))
        yield from around
    for pair in rig.norms:
        yield from _blocks(rig, None, [pair], ways[:1])
    yield from _head(rig, ways[0])


def _blocks(rig: Rig, layer: Pair | None, pairs: Sequence[Pair], ways: Sequence[Way]) -> Iterator[Checked]:
    """Some blocks of one layer, fed at each scale; a block that is wrong at one is not tried at others."""
    wrong: set[str] = set()
    # The reference gives the same in every way.
    known: dict[str, tuple[Tensor, Tensor | None]] = {}
    for way in ways:
        errors: dict[str, dict[float, Finding]] = {}
        for scale in (PLAIN, TINY, ROUTED, LOUD) if way is ways[0] and rig.baseline is None else (PLAIN,):
            fed = {
                pair.ours: hidden
                for pair in pairs
                if _runs(rig, pair, way, ways, scale) and (hidden := rig.fed(pair, scale)) is not None
            }
            if not fed or wrong >= set(fed):
                continue
            outputs = _outputs(rig, layer, fed, way)
            for pair in pairs:
                if pair.ours not in outputs or pair.ours in wrong:
                    continue
                given = fed[pair.ours]
                if scale == PLAIN and pair.ours not in known:
                    known[pair.ours] = rig.expected(pair, given)
                finding, judge = rig.compare(
                    pair, outputs[pair.ours], given, known[pair.ours] if scale == PLAIN else None
                )
                errors.setdefault(pair.ours, {})[scale] = finding
                if finding.ok:
                    continue
                wrong.add(pair.ours)
                part = Part("wiring", f"the layer differs: {finding.words}", finding.row)
                if not pair.whole:
                    part = explain(rig, way, pair, fed[pair.ours], finding, judge)
                result = _result(rig, pair, way, errors[pair.ours], finding)
                yield Checked(result, place_of(rig, way, pair, part), scale == PLAIN and _gross(finding))
        for pair in pairs:
            if pair.ours in errors and pair.ours not in wrong:
                yield Checked(_result(rig, pair, way, errors[pair.ours]))


def _gross(finding: Finding) -> bool:
    if finding.comparison is None:
        return finding.error > ELSEWHERE
    return finding.comparison.target is not None and finding.comparison.target.relative > ELSEWHERE_BF16


def _runs(rig: Rig, pair: Pair, way: Way, ways: Sequence[Way], scale: float) -> bool:
    """Whether a block has something to show this way, at this scale."""
    block = rig.model.get_submodule(pair.ours)
    cached = any(hasattr(module, "bind") for module in block.modules())
    # How a layer is wired shows at any scale.
    scales = (PLAIN,) if pair.whole else scales_of(block)
    return (way is ways[0] or cached) and scale in scales


def _outputs(rig: Rig, layer: Pair | None, fed: Mapping[str, Tensor], way: Way) -> dict[str, Tensor]:
    """What fed blocks give; their layer runs by itself where nothing but hidden states and the step enters it."""
    alone = None
    given = dict(fed)
    if layer is not None:
        wanted = list(inspect.signature(rig.model.get_submodule(layer.ours).forward).parameters)
        around = rig.fed(layer)
        if wanted[1:] == ["step"] and around is not None:
            alone = layer.ours
            given.setdefault(layer.ours, around)
    return rig.run(way, list(given), given, alone=alone).first.outputs


def _result(
    rig: Rig, pair: Pair, way: Way, findings: Mapping[float, Finding], failed: Finding | None = None
) -> BlockResult:
    shown = failed or findings.get(PLAIN) or next(iter(findings.values()))
    outcome: Outcome = "fail" if failed else "pass"
    words = shown.comparison.verdict if shown.comparison is not None else f"{outcome}: {shown.words}"
    notes = [f"input times {scale:g}: {f.words}" for scale, f in findings.items() if scale != PLAIN]
    return BlockResult(
        words,
        pair.layer,
        "layer" if pair.whole else pair.ours.rpartition(".")[2],
        pair.ours,
        pair.theirs,
        str(rig.dtype).removeprefix("torch."),
        "decode" if way.name == DECODE.name else "prefill",
        shown.comparison,
        tuple(notes),
    )


def _single(rig: Rig, way: Way, pair: Pair, ours: Tensor, theirs: Tensor, base: Tensor | None) -> BlockResult:
    judge: Any = ExactJudge() if base is None else ThreeWayJudge()
    finding: Finding = judge(ours, theirs, base, pair.ours)
    return _result(rig, pair, way, {PLAIN: finding}, None if finding.ok else finding)


def _embedding(rig: Rig, way: Way) -> Iterator[Checked]:
    """What enters the first layer."""
    first = rig.layers[0]
    seen = rig.run(way, [first.ours]).first
    if EMBED not in seen.outputs:
        return
    base = None if rig.baseline is None else rig.baseline.entered()
    pair = Pair(EMBED, f"what enters {first.theirs}")
    result = _single(rig, way, pair, seen.outputs[EMBED], rig.gold.entered(), base)
    yield Checked(result, None if result.passed else locate_embedding(rig, way))


def _head(rig: Rig, way: Way) -> Iterator[Checked]:
    """Logits of the reference's last hidden states."""
    hidden = None if rig.head is None else rig.fed(rig.head)
    if rig.head is None or hidden is None:
        return
    with torch.no_grad():
        ours = rig.model.compute_logits(hidden.to(rig.dtype)).float()
    base = None if rig.baseline is None else rig.baseline.logits
    result = _single(rig, way, Pair(HEAD, rig.head.theirs), ours, rig.gold.logits, base)
    yield Checked(result, None if result.passed else locate_head(rig, way))
