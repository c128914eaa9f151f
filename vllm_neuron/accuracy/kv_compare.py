"""The KV cache after the last token, layer by layer: what the target will attend to from here on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_neuron.accuracy.results import LayerResult, ThreeWay
from vllm_neuron.accuracy.sources import LayerKV
from vllm_neuron.accuracy.stats import Tally
from vllm_neuron.accuracy.testing import judge
from vllm_neuron.accuracy.token_limits import TOKEN_LIMITS, TokenLimits


def compare_kv(
    target: Sequence[LayerKV],
    expected: Sequence[LayerKV],
    baseline: Sequence[LayerKV] | None,
    *,
    dtype: torch.dtype,
    exact: bool,
    limits: TokenLimits = TOKEN_LIMITS,
) -> tuple[tuple[LayerResult, ...], tuple[str, ...]]:
    """Keys and values of each layer under the three-way limits; a window's layer from its first kept position on.

    Args:
        target, expected, baseline: the caches; layers are matched by index.
        dtype: that the target computes in.
        exact: judge by ``limits.exact_rtol`` and not by the baseline's error.
        limits: see :class:`TokenLimits`; positions are the independent samples here too.

    Returns:
        One result for each layer that the reference has, and notes on layers that only one side has.
    """
    golds = {each.layer: each for each in expected}
    others = {each.layer: each for each in baseline or ()}
    found, notes = [], []
    for mine in target:
        gold = golds.pop(mine.layer, None)
        base = others.get(mine.layer)
        if gold is None:
            notes.append(f"KV cache of layer {mine.layer}: the reference has none to compare with")
        elif base is None and not exact:
            notes.append(f"KV cache of layer {mine.layer}: the baseline has none to compare with")
        else:
            found.append(_layer(mine, gold, base or gold, dtype, exact, limits))
    notes += [f"KV cache of layer {layer}: the target keeps none" for layer in sorted(golds)]
    return tuple(found), tuple(notes)


def _layer(
    mine: LayerKV, gold: LayerKV, base: LayerKV, dtype: torch.dtype, exact: bool, limits: TokenLimits
) -> LayerResult:
    name = mine.name or f"layers.{mine.layer}"
    start = max(mine.start, gold.start, base.start)
    sides = [(_from(each.keys_SKD, each, start), _from(each.values_SKD, each, start)) for each in (mine, gold, base)]
    shapes = [[list(part.shape) for part in side] for side in sides]
    if shapes[0] != shapes[1] or shapes[1] != shapes[2]:
        shown = f"keys {shapes[0][0]} and values {shapes[0][1]}, the reference {shapes[1][0]} and {shapes[1][1]}"
        return LayerResult(verdict=f"not run: the target keeps {shown}", layer=mine.layer, name=name, kind="kv")
    if not sides[1][0].numel():
        return LayerResult(verdict="not run: no position in common", layer=mine.layer, name=name, kind="kv")
    tensors, errors, baseline_errors = [], [], []
    for part, (t, x, b) in zip(("keys", "values"), zip(*sides, strict=True), strict=True):
        result, mine_S, base_S = _part(f"{name} {part}", t, x, b, dtype, exact, limits)
        tensors.append(result)
        errors.append(mine_S)
        baseline_errors.append(base_S)
    bad = [each for each in tensors if not each.passed]
    return LayerResult(
        verdict=_of_part(bad[0]) if bad else tensors[0].verdict,
        layer=mine.layer,
        name=name,
        kind="kv",
        tensors=tuple(tensors),
        errors=_worst(errors),
        baseline_errors=_worst(baseline_errors),
        start=start,
    )


def _of_part(result: ThreeWay) -> str:
    outcome, _, rest = result.verdict.partition(": ")
    return f"{outcome}: {result.name.rpartition(' ')[2]}: {rest}"


def _from(x_SKD: Tensor, kv: LayerKV, start: int) -> Tensor:
    return x_SKD[start - kv.start :].detach().float()


def _part(
    name: str, t: Tensor, x: Tensor, b: Tensor, dtype: torch.dtype, exact: bool, limits: TokenLimits
) -> tuple[ThreeWay, Tensor, Tensor]:
    """The comparison of keys or values, and both sides' relative error at each position."""
    tally = Tally(dtype, limits.exact_rtol if exact else None)
    tally.add(t, x, x if exact else b)
    mine, base = _relative(t, x), _relative(b, x)
    noise = None
    if not exact and tally.bad is None and tally.bad_reference is None:
        least = torch.finfo(dtype).eps / 4
        logs = [math.log(max(m, least) / max(o, least)) for m, o in zip(mine.tolist(), base.tolist(), strict=True)]
        noise = limits.noise_limit(logs)
    label = str(dtype).removeprefix("torch.")
    result = judge([tally], name=name, shape=tuple(t.shape), dtype=label, limits=limits.comparison, noise_limit=noise)
    return result, mine, base


def _relative(x_SKD: Tensor, gold_SKD: Tensor) -> Tensor:
    """[S]: error of each position over its size; infinite where it is no number or the size is zero."""
    difference = (x_SKD - gold_SKD).flatten(1).double().norm(dim=1)
    size = gold_SKD.flatten(1).double().norm(dim=1)
    errors = torch.where(size > 0, difference / size, torch.where(difference > 0, torch.inf, 0.0))
    return torch.where(errors.isnan(), torch.inf, errors)


def _worst(parts: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(torch.stack(list(parts)).amax(0).tolist())
