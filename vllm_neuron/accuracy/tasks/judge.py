"""Verdict of one task: the target against the reference, item by item."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_neuron.accuracy.results import TaskResult
from vllm_neuron.accuracy.tasks.harness import Scores
from vllm_neuron.accuracy.tasks.thresholds import TaskThreshold

# A drop counts when chance would give one as lopsided less often than this.
SIGNIFICANCE = 0.05


def sign_test(worse: int, better: int) -> float:
    """Chance of at least ``worse`` of ``worse + better`` fair coins: items that differ, if neither side were better."""
    count = worse + better
    return sum(math.comb(count, k) for k in range(worse, count + 1)) / 2**count


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean: binomial for shares of right items, the sample's for other values; None for less than two."""
    count = len(values)
    if count < 2:
        return None
    mean = sum(values) / count
    if set(values) <= {0.0, 1.0}:
        return math.sqrt(mean * (1 - mean) / count)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1) / count)


def judge(target: Scores, reference: Scores, baseline: Scores | None, limits: TaskThreshold) -> TaskResult:
    """Compare two sides on the items that both answered.

    The drop fails when it is above ``max_drop`` and no chance: a sign test on the items that differ, p below
    :data:`SIGNIFICANCE`.

    Args:
        target: what is tested.
        reference: what it is held against.
        baseline: the reference in the dtype that is served, for the notes.
        limits: of this task.
    """
    shared = sorted(set(target.items) & set(reference.items))
    partial = len(target.items) < target.asked
    notes = [*target.notes]
    if partial:
        notes.append(f"{len(target.items)} of {target.asked} items answered")
    if not shared:
        why = "; ".join(target.notes) or "no item was answered"
        return TaskResult(f"not run: {why}", target.task, target.metric, notes=tuple(notes), partial=partial)
    ours = [target.items[i].value for i in shared]
    theirs = [reference.items[i].value for i in shared]
    same = sum(target.items[i].answer == reference.items[i].answer for i in shared)
    score, held = sum(ours) / len(ours), sum(theirs) / len(theirs)
    sign = 1.0 if target.higher_is_better else -1.0
    worse = sum(sign * (a - b) < 0 for a, b in zip(ours, theirs, strict=True))
    better = sum(sign * (a - b) > 0 for a, b in zip(ours, theirs, strict=True))
    if baseline is not None:
        notes.append(_beside(baseline, reference))
    error = standard_error(ours)
    return TaskResult(
        _verdict(score, held, worse, better, sign, len(shared), limits, partial),
        target.task,
        target.metric,
        score=score,
        reference=held,
        items=len(shared),
        error=error,
        threshold=limits.min_score,
        agreement=same / len(shared),
        notes=tuple(notes),
        partial=partial,
    )


def _beside(baseline: Scores, reference: Scores) -> str:
    """What the baseline does on the same items."""
    shared = set(baseline.items) & set(reference.items)
    same = sum(baseline.items[i].answer == reference.items[i].answer for i in shared)
    return f"Hugging Face in bf16: {baseline.score:.3f}, the same answer on {same} of {len(shared)} items"


def _verdict(
    score: float,
    held: float,
    worse: int,
    better: int,
    sign: float,
    items: int,
    limits: TaskThreshold,
    partial: bool,
) -> str:
    chance = sign_test(worse, better)
    told = f"{score:.3f} against {held:.3f}, {worse} of {items} items worse and {better} better (p {chance:.2f})"
    if limits.min_score is not None and sign * (score - limits.min_score) < 0:
        return f"fail: {score:.3f} is beyond the limit {limits.min_score:g}; {told}"
    # A share of items is no exact float.
    if sign * (held - score) > limits.max_drop + 1e-9 and chance < SIGNIFICANCE:
        return f"fail: {told}"
    return f"pass: {told}" + (", as far as it was answered" if partial else "")
