"""Rotary tables: cosines and sines of ours against those that the reference hands to its attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.calls import Call
from vllm_neuron.accuracy.gold import Gold
from vllm_neuron.accuracy.judge import BAR, ExactJudge, Finding, Judge, ThreeWayJudge
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.accuracy.results import BlockResult
from vllm_neuron.accuracy.rig import Rig
from vllm_neuron.nn import Rotary

# Angles are products of a position with a frequency that has a relative error of a few times this.
ANGLE = 4 * 2.0**-24


def check_rotary(rig: Rig) -> Iterator[BlockResult]:
    """One result for each rotary table of the package, at the first layer that reads it."""
    seen: set[int] = set()
    for layer in rig.layers:
        assert layer.layer is not None
        for pair in rig.inner(layer.layer):
            rotary = getattr(rig.model.get_submodule(pair.ours), "rotary", None)
            if not isinstance(rotary, Rotary) or id(rotary) in seen:
                continue
            seen.add(id(rotary))
            result = _compare(rig, pair, rotary)
            if result is not None:
                yield result


def _compare(rig: Rig, pair: Pair, rotary: Rotary) -> BlockResult | None:
    expected = _angles(rig.gold, pair)
    baseline = None if rig.baseline is None else _angles(rig.baseline, pair)
    if expected is None or (rig.baseline is not None and baseline is None):
        return None
    positions = torch.cat([torch.arange(len(ids)) for ids in rig.prompts])
    ours = _ours(rotary, positions)
    if ours.shape != expected.shape:
        return None
    judge: Judge = ThreeWayJudge()
    if baseline is None:
        judge = ExactJudge((positions * ANGLE).clamp_min(BAR))
    finding: Finding = judge(ours, expected, baseline, f"{pair.ours}.rotary")
    words = f"{'pass' if finding.ok else 'fail'}: {finding.words}"
    verdict = finding.comparison.verdict if finding.comparison is not None else words
    return BlockResult(
        verdict,
        pair.layer,
        "rotary",
        f"{pair.ours}.rotary",
        f"position embeddings of {pair.theirs}",
        str(rig.dtype).removeprefix("torch."),
        "prefill",
        finding.comparison,
    )


def _ours(rotary: Rotary, positions_T: Tensor) -> Tensor:
    """float32 [T, R]: each angle's cosine, then each angle's sine, once."""
    cos, sin = rotary.table[positions_T].float().chunk(2, dim=-1)
    half = cos.shape[-1] // 2
    if rotary.config.interleaved:
        return torch.cat((cos[:, ::2], sin[:, ::2]), dim=-1)
    # The sines of the first half come negated.
    return torch.cat((cos[:, :half], sin[:, half:]), dim=-1)


def _angles(gold: Gold, pair: Pair) -> Tensor | None:
    """[R, ...]: the cosines and sines that the counterpart was handed, each once; None when it was handed none."""
    calls = gold.calls(pair)
    found = [] if calls is None else [_handed(call) for call in calls]
    return torch.cat([x for x in found if x is not None]) if found and all(x is not None for x in found) else None


def _handed(call: Call) -> Tensor | None:
    values: list[Any] = [*call.args, *call.kwargs.values()]
    for value in values:
        if isinstance(value, tuple) and len(value) == 2 and all(isinstance(x, Tensor) for x in value):
            cos, sin = (x.detach().float().reshape(-1, x.shape[-1]) for x in value)
            if cos.shape == sin.shape:
                return torch.cat((_once(cos), _once(sin)), dim=-1)
    return None


def _once(values: Tensor) -> Tensor:
    """Cosines or sines without their repetition, side by side or pair by pair, if they have one."""
    half = values.shape[-1] // 2
    if torch.equal(values[:, :half], values[:, half:]):
        return values[:, :half]
    return values[:, ::2] if torch.equal(values[:, ::2], values[:, 1::2]) else values
