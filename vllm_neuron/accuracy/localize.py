"""Where a run of the whole model leaves the reference: the first guilty layer, block and part.

A block is guilty when it is wrong though it is given the reference's input; what is only wrong because its input is, is
propagated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vllm_neuron.accuracy.explain import (
    Part,
    Scene,
    explain_attention,
    explain_embedding,
    explain_head,
    explain_mlp,
    explain_moe,
    explain_norm,
)
from vllm_neuron.accuracy.explain.scene import UNKNOWN
from vllm_neuron.accuracy.judge import ExactJudge, Finding, Judge, ThreeWayJudge
from vllm_neuron.accuracy.observed import EMBED
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.accuracy.results import Place
from vllm_neuron.accuracy.rig import HEAD, Ran, Rig
from vllm_neuron.accuracy.ways import Way
from vllm_neuron.nn import LayerNorm, MoE, RMSNorm

LOGITS = "logits"


@dataclass(frozen=True)
class Divergence:
    """The first comparison of a free run that fails.

    Attributes:
        layer: index; None outside the layers.
        name: our block, ``embed`` or ``logits``.
        finding: what the comparison said.
    """

    layer: int | None
    name: str
    finding: Finding


def diverges(rig: Rig, way: Way) -> tuple[Divergence | None, Finding]:
    """Run freely in float32 and compare what enters the layers, each layer, the last norm and the logits, in order.

    Returns:
        The first that fails, and what the last comparison said.
    """
    outer = [*rig.layers, *rig.norms]
    ran = rig.run(way, [pair.ours for pair in outer])
    seen = ran.first
    if EMBED in seen.outputs:
        finding = rig.free(EMBED, seen.outputs[EMBED], rig.gold.entered())
        if not finding.ok:
            return Divergence(None, EMBED, finding), finding
    for pair in outer:
        expected = rig.gold.output(pair)
        if expected is None:
            continue
        if pair.ours not in seen.outputs:
            silent = Finding(False, float("inf"), 0, "it never ran")
            return Divergence(pair.layer, pair.ours, silent), silent
        finding = rig.free(pair.theirs, seen.outputs[pair.ours], expected)
        if not finding.ok:
            return Divergence(pair.layer, pair.ours, finding), finding
    finding = rig.free("", ran.logits, rig.gold.logits)
    return (None if finding.ok else Divergence(None, LOGITS, finding)), finding


def locate(rig: Rig, way: Way, divergence: Divergence) -> Place | None:
    """The first block that is wrong with right inputs when the prompts are run one way; None when there is none.

    Args:
        rig, way: both sides, and how ours is run.
        divergence: where the free run leaves the reference.
    """
    place = locate_embedding(rig, way) or _layers(rig, way) or _norms(rig, way) or locate_head(rig, way)
    if place is None and divergence.name == LOGITS and rig.head is not None:
        # Every layer agrees in the free run itself, and so does the head with the right rows.
        logits = rig.run(way, []).logits
        return place_of(rig, way, rig.head, _other_row(logits, rig.gold.logits, divergence.finding))
    return place


def place_of(rig: Rig, way: Way, pair: Pair, part: Part, kind: Literal["local", "propagated"] = "local") -> Place:
    """The place of a part of a block."""
    row = part.row
    return Place(
        layer=pair.layer,
        block=pair.ours.rpartition(".")[2] if not pair.whole else "layer",
        ours=pair.ours,
        theirs=pair.theirs,
        kind=kind,
        evidence=part.evidence,
        phase=way.name,
        position=None if row is None else rig.gold.position(row),
        part=part.name,
    )


def locate_embedding(rig: Rig, way: Way) -> Place | None:
    """The embedding, when what enters the first layer is wrong."""
    first = rig.layers[0]
    seen = rig.run(way, [first.ours]).first
    if EMBED not in seen.outputs:
        return None
    ours, expected = seen.outputs[EMBED], rig.gold.entered()
    baseline = None if rig.baseline is None else rig.baseline.entered()
    judge: Judge = ExactJudge() if baseline is None else ThreeWayJudge()
    finding = judge(ours, expected, baseline, EMBED)
    if finding.ok:
        return None
    return place_of(rig, way, Pair(EMBED, f"what enters {first.theirs}"), explain_embedding(ours, expected, finding))


def _layers(rig: Rig, way: Way) -> Place | None:
    """Whole layers, each given the reference's input; then the blocks of the first that is wrong."""
    fed = {pair.ours: hidden for pair in rig.layers if (hidden := rig.fed(pair)) is not None}
    seen = rig.run(way, list(fed), fed).first
    for pair in rig.layers:
        if pair.ours not in fed:
            continue
        if pair.ours not in seen.outputs:
            return place_of(rig, way, pair, Part("skipped", "the layer never runs", 0))
        finding, _ = rig.compare(pair, seen.outputs[pair.ours], fed[pair.ours])
        if not finding.ok:
            return _inside(rig, way, pair, finding)
    return None


def _inside(rig: Rig, way: Way, layer: Pair, finding: Finding) -> Place:
    """The first wrong block of a layer that is wrong by itself, or the layer's own wiring."""
    assert layer.layer is not None
    blocks = [(pair, hidden) for pair in rig.inner(layer.layer) if (hidden := rig.fed(pair)) is not None]
    fed = {pair.ours: hidden for pair, hidden in blocks}
    seen = rig.run(way, list(fed), fed).first
    order = {name: k for k, name in enumerate(seen.order)}
    for pair, hidden in sorted(blocks, key=lambda each: order.get(each[0].ours, len(order))):
        if pair.ours not in seen.outputs:
            continue
        found, judge = rig.compare(pair, seen.outputs[pair.ours], hidden)
        if not found.ok and not _ends_elsewhere(rig, way, pair):
            part = explain(rig, way, pair, hidden, found, judge)
            return place_of(rig, way, pair, part)
    silent = [pair.ours for pair, _ in blocks if pair.ours not in seen.outputs]
    if silent:
        return place_of(rig, way, layer, Part("skipped", f"{', '.join(silent)} never runs", finding.row))
    words = f"its blocks agree, the layer does not: {finding.words}"
    return place_of(rig, way, layer, Part("wiring", words, finding.row))


def _ends_elsewhere(rig: Rig, way: Way, pair: Pair) -> bool:
    """Whether the same block of another layer is as wrong though that layer agrees: its counterpart ends elsewhere."""
    for layer in rig.layers:
        if layer.layer == pair.layer or layer.layer is None:
            continue
        twin = next((p for p in rig.inner(layer.layer) if p.pattern == pair.pattern), None)
        hidden, around = (None if twin is None else rig.fed(twin)), rig.fed(layer)
        if twin is None or hidden is None or around is None:
            continue
        whole = rig.run(way, [layer.ours], {layer.ours: around}).first.outputs[layer.ours]
        if not rig.compare(layer, whole, around)[0].ok:
            continue
        inner = rig.run(way, [twin.ours], {twin.ours: hidden}).first.outputs.get(twin.ours)
        return inner is not None and not rig.compare(twin, inner, hidden)[0].ok
    return False


def _norms(rig: Rig, way: Way) -> Place | None:
    """The last norm, given the reference's input."""
    for pair in rig.norms:
        hidden = rig.fed(pair)
        if hidden is None:
            continue
        seen = rig.run(way, [pair.ours], {pair.ours: hidden})
        if pair.ours not in seen.first.outputs:
            continue
        finding, judge = rig.compare(pair, seen.first.outputs[pair.ours], hidden)
        if not finding.ok:
            return place_of(rig, way, pair, explain(rig, way, pair, hidden, finding, judge))
    return None


def locate_head(rig: Rig, way: Way) -> Place | None:
    """The head, when it gives other logits for the reference's last hidden states."""
    if rig.head is None:
        return None
    hidden = rig.fed(rig.head)
    if hidden is None:
        return None
    ours = rig.run(way, [], hidden=hidden).logits
    if rig.baseline is None:
        finding = rig.free("", ours, rig.gold.logits)
    else:
        finding = ThreeWayJudge()(ours, rig.gold.logits, rig.baseline.logits, HEAD)
    return None if finding.ok else place_of(rig, way, rig.head, explain_head(ours, rig.gold.logits, finding))


def _other_row(ours: Tensor, theirs: Tensor, finding: Finding) -> Part:
    """Every block agrees, the logits do not: they may be those of another token."""
    assert finding.row is not None
    distances = (theirs - ours[finding.row]).norm(dim=-1) / theirs.norm(dim=-1)
    nearest = int(distances.argmin())
    if float(distances[nearest]) < 1e-2 and nearest != finding.row:
        return Part("rows", f"the logits are those of the token {nearest - finding.row:+d} from it", finding.row)
    return Part("rows", f"every block agrees, the logits do not: {finding.words}", finding.row)


def explain(rig: Rig, way: Way, pair: Pair, hidden: Tensor, finding: Finding, judge: Judge) -> Part:
    """What in a wrong block is wrong; its name alone when no explanation fits."""
    ran = rig.run(way, [pair.ours], {pair.ours: hidden}, watch=pair.ours)
    modules = [model.get_submodule(pair.ours) for model in ran.models]
    if isinstance(modules[0], RMSNorm | LayerNorm):
        return explain_norm(ran.first.outputs[pair.ours], rig.expected(pair, hidden)[0], finding)
    part = _explain_inside(rig, pair, hidden, ran, modules, judge)
    return part if part.name else Part("", finding.words, finding.row)


def _explain_inside(rig: Rig, pair: Pair, hidden: Tensor, ran: Ran, modules: Sequence[object], judge: Judge) -> Part:
    baseline = None if rig.baseline is None else rig.baseline.inside(pair, hidden)
    sources, judge = rig.sources, _inner_judge(judge)
    scene = Scene(pair, modules, ran.ranks, rig.gold, rig.gold.inside(pair, hidden), baseline, sources, judge)
    module = scene.module
    if hasattr(module, "qkv") and hasattr(module, "bind"):
        return explain_attention(scene)
    if isinstance(module, MoE):
        return explain_moe(scene)
    if hasattr(module, "down"):
        return explain_mlp(scene)
    return UNKNOWN


def _inner_judge(judge: Judge) -> Judge:
    """Parts of a block are held to the block's own bar at its worst row."""
    if isinstance(judge, ExactJudge) and isinstance(judge.bars, Tensor):
        return ExactJudge(float(torch.nan_to_num(judge.bars, nan=0.0, posinf=0.0).max()), judge.counted)
    return judge
