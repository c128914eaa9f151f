"""Level 2, tokens: teacher-forced logits and the KV cache of a target against Hugging Face in fp32 and in bf16.

Every prompt is a fixed list of ids that all three run, so one wrong token does not spoil what follows. A prompt passes
when the target's logits err as bf16 does, position by position, stretch by stretch and as a whole, and the cache that
is left behind does too. Where the highest tokens differ although both sides are right to within rounding, the position
is a near tie: counted apart and said, not an error. :class:`~vllm_neuron.accuracy.token_limits.TokenLimits` has the
numbers and the reasons.

A float32 target is held to ``exact_rtol`` and needs no bf16 baseline: its rounding errors are a thousand times
smaller, so faults show that BF16 would hide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from vllm_neuron.accuracy.inputs import Refusal, check_ids, check_prompt, check_tokenizers, check_vocabulary
from vllm_neuron.accuracy.kv_compare import compare_kv
from vllm_neuron.accuracy.prompts import Prompt
from vllm_neuron.accuracy.reach import Reach
from vllm_neuron.accuracy.results import (
    EXPLAINED,
    NEAR_TIES,
    LayerResult,
    LevelResult,
    Place,
    PromptResult,
    ThreeWay,
    TokenRow,
    worst,
)
from vllm_neuron.accuracy.side_by_side import in_batch
from vllm_neuron.accuracy.sources import LogitsSource, Scored
from vllm_neuron.accuracy.stats import Tally
from vllm_neuron.accuracy.testing import judge
from vllm_neuron.accuracy.token_limits import TOKEN_LIMITS, TokenLimits
from vllm_neuron.accuracy.token_rows import Stretch, TokenRows
from vllm_neuron.errors import NeuronError

# Elements of one side that are compared at a time: 4 MiB as float32, so that a chunk stays in the processor's cache.
CHUNK = 1 << 20
Locate = Callable[[PromptResult], Place | None]


@dataclass(frozen=True, eq=False)
class Validated:
    """A prompt's result and what pooling needs of it."""

    result: PromptResult
    tally: Tally | None = None
    log_ratios: tuple[float, ...] = ()


def validate_prompt(
    target: LogitsSource,
    prompt: Prompt,
    *,
    expected: LogitsSource,
    baseline: LogitsSource | None = None,
    limits: TokenLimits = TOKEN_LIMITS,
    text: Callable[[int], str] | None = None,
) -> PromptResult:
    """One prompt on all sides, compared.

    Args:
        target: what is tested.
        prompt: its ids, and how many of the last are decoded one by one.
        expected: the gold, in float32.
        baseline: the same reference in bf16; may be left out for a float32 target.
        limits: what has to be kept.
        text: token id -> its text, for the tables.

    Returns:
        The result. Nothing is raised for what a comparison can say: unlike ids, tokenizers or vocabularies are
        ``refused``, a target that raises is ``not run`` with the message.
    """
    return _validate(target, prompt, expected, baseline, limits, text).result


def logit_validation(
    target: LogitsSource,
    prompts: Sequence[Prompt],
    *,
    expected: LogitsSource,
    baseline: LogitsSource | None = None,
    limits: TokenLimits = TOKEN_LIMITS,
    text: Callable[[int], str] | None = None,
    reach: Reach | None = None,
    locate: Locate | None = None,
    progress: Callable[[PromptResult], None] | None = None,
) -> LevelResult:
    """All prompts, one after the other; their logits pooled; then the shortest ones in a batch, if the target can.

    Args:
        target, expected, baseline, limits, text: as in :func:`validate_prompt`.
        prompts: at least one, or the level is refused.
        reach: where the model changes what it does, for the coverage; one without windows when None.
        locate: finds the guilty module of a prompt that fails; asked once, for the first one.
        progress: called with each prompt's result.
    """
    began = time.monotonic()
    if not prompts:
        return LevelResult(verdict="refused: there are no prompts", level=2)
    usable = [prompt.ids for prompt in prompts if _refusal(target, prompt, expected, baseline) is None]
    for source in (expected, baseline):
        prepare = getattr(source, "prepare", None)
        if prepare is not None and usable:
            prepare(usable)
    batch = in_batch(target, [prompt for prompt in prompts if prompt.ids in usable])
    done: list[Validated] = []
    place: Place | None = None
    for prompt, source in (*((prompt, target) for prompt in prompts), *batch):
        one = _validate(source, prompt, expected, baseline, limits, text)
        if one.result.outcome == "fail" and locate is not None:
            place, locate = locate(one.result), None
            if place is not None:
                one = replace(one, result=located(one.result, place))
        done.append(one)
        if progress is not None:
            progress(one.result)
    # What a batch gives again would count twice.
    pooled = _pooled(done[: len(prompts)], limits)
    results = tuple(replace(each.result, coverage=_covered(each.result, reach or Reach())) for each in done)
    missing = (reach or Reach()).missing(result.coverage for result in results)
    return LevelResult(
        verdict=_level_verdict(results, pooled),
        level=2,
        prompts=results,
        logits=pooled,
        place=place,
        coverage=tuple(dict.fromkeys(label for result in results for label in result.coverage)),
        not_covered=missing,
        notes=_level_notes(results, missing, batched=bool(batch)),
        seconds=time.monotonic() - began,
        partial=any(result.partial for result in results),
    )


def _covered(result: PromptResult, reach: Reach) -> tuple[str, ...]:
    """What the positions that were compared reach."""
    if not result.rows:
        return ()
    length = result.rows[-1].position + 1
    return reach.covered(length, max(0, length - (len(result.ids) - result.steps)))


def located(result: PromptResult, place: Place) -> PromptResult:
    """The result with the guilty module in its verdict: ``fail: ... at layer 3, attn (prefill)``."""
    return replace(result, place=place, verdict=f"{result.verdict}; at {place.words()}")


def _validate(
    target: LogitsSource,
    prompt: Prompt,
    expected: LogitsSource,
    baseline: LogitsSource | None,
    limits: TokenLimits,
    text: Callable[[int], str] | None,
) -> Validated:
    empty = PromptResult(verdict="not run", name=prompt.name, ids=prompt.ids, steps=prompt.steps)
    refusal = _refusal(target, prompt, expected, baseline)
    if refusal is not None:
        return Validated(replace(empty, verdict=refusal.verdict, notes=refusal.notes))
    try:
        scored = target.score(prompt.ids, prompt.steps)
    except (NeuronError, OSError) as error:
        return Validated(replace(empty, verdict=f"not run: {error}", partial=True))
    refusal = check_ids(prompt.ids, scored.seen_ids, partial=scored.partial)
    if refusal is not None:
        notes = (*refusal.notes, *scored.notes)
        return Validated(replace(empty, verdict=refusal.verdict, seen_ids=tuple(scored.seen_ids), notes=notes))
    exact = target.dtype == "float32"
    gold = expected.score(prompt.ids, prompt.steps)
    base = None if baseline is None else baseline.score(prompt.ids, prompt.steps)
    rows = TokenRows(prompt.ids, prompt.steps, dtype=_dtype(target, baseline), exact=exact, limits=limits, text=text)
    _take(rows, scored, gold, base, expected.vocab_size)
    return _result(empty, rows, scored, gold, base, exact, limits, target)


def _refusal(
    target: LogitsSource, prompt: Prompt, expected: LogitsSource, baseline: LogitsSource | None
) -> Refusal | None:
    """Why nobody has to run anything."""
    return (
        check_prompt(prompt.ids, prompt.steps, expected.vocab_size)
        or check_vocabulary(expected.vocab_size, target.vocab_size)
        or check_tokenizers(expected.tokenizer_id, target.tokenizer_id)
        or _check_reference(expected, baseline, target.dtype == "float32")
    )


def _check_reference(expected: LogitsSource, baseline: LogitsSource | None, exact: bool) -> Refusal | None:
    if expected.dtype not in ("float32", "float64"):
        return Refusal(f"refused: the gold is {expected.dtype}, it has to be float32 or wider")
    if baseline is None and not exact:
        return Refusal(
            "refused: no bf16 baseline", ("What BF16 explains is measured by Hugging Face in bf16; give a baseline.",)
        )
    if baseline is None:
        return None
    return check_tokenizers(expected.tokenizer_id, baseline.tokenizer_id) or check_vocabulary(
        expected.vocab_size, baseline.vocab_size
    )


def _dtype(target: LogitsSource, baseline: LogitsSource | None) -> torch.dtype:
    """The target's own; the baseline's when it is not known (a server)."""
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    found = names.get(target.dtype) or (names.get(baseline.dtype) if baseline else None)
    return found or torch.bfloat16


def _take(rows: TokenRows, scored: Scored, gold: Scored, base: Scored | None, vocab: int) -> None:
    """Hand over all positions, a chunk at a time."""
    assert gold.logits_TV is not None
    x_TV, b_TV = gold.logits_TV, None if base is None else base.logits_TV
    if scored.logits_TV is None:
        for row, top in enumerate(scored.top or ()):
            position = scored.first + row
            rows.add_top(position, top, x_TV[position, :vocab], None if b_TV is None else b_TV[position, :vocab])
        return
    step = max(1, CHUNK // x_TV.shape[1])
    for start in range(0, len(scored.logits_TV), step):
        piece = scored.logits_TV[start : start + step]
        span = slice(scored.first + start, scored.first + start + len(piece))
        rows.add(span.start, piece, x_TV[span, :vocab], None if b_TV is None else b_TV[span, :vocab])


def _result(
    empty: PromptResult,
    rows: TokenRows,
    scored: Scored,
    gold: Scored,
    base: Scored | None,
    exact: bool,
    limits: TokenLimits,
    target: LogitsSource,
) -> Validated:
    made = rows.finish()
    logs = rows.log_ratios()
    kv, kv_notes = _kv(rows, scored, gold, base, exact, limits)
    label = str(rows.tally.dtype).removeprefix("torch.")
    shape = (len(made), gold.logits_TV.shape[1]) if gold.logits_TV is not None else ()
    noise = limits.noise_limit(logs) if logs else None
    logits = None
    if made and (rows.tally.count or rows.tally.bad or rows.tally.bad_reference):
        logits = judge(
            [rows.tally], name=empty.name, shape=shape, dtype=label, limits=limits.comparison, noise_limit=noise
        )
    if logits is not None and logits.outcome == "refused":
        return Validated(replace(empty, verdict=logits.verdict, seen_ids=tuple(scored.seen_ids), logits=logits))
    stretches = rows.stretches()
    failing = [row.position for row in made if not row.passed] or [each.start for each in stretches]
    result = replace(
        empty,
        verdict=_verdict(made, stretches, logits, kv, scored, target),
        seen_ids=tuple(scored.seen_ids),
        rows=made,
        logits=logits,
        layers=kv,
        diverges_at=failing[0] if failing else None,
        scatter=tuple(rows.scatter),
        notes=(*_notes(rows, made, scored, gold), *_chance(logits, noise, len(logs)), *kv_notes),
        partial=scored.partial,
    )
    return Validated(result, rows.tally if logits is not None and logits.target else None, tuple(logs))


def _kv(
    rows: TokenRows, scored: Scored, gold: Scored, base: Scored | None, exact: bool, limits: TokenLimits
) -> tuple[tuple[LayerResult, ...], tuple[str, ...]]:
    if scored.kv is None:
        return (), ("the target's KV cache was not compared: it can't show it",)
    if gold.kv is None:
        return (), ("the KV cache was not compared: the reference keeps none of this form",)
    return compare_kv(
        scored.kv, gold.kv, None if base is None else base.kv, dtype=rows.tally.dtype, exact=exact, limits=limits
    )


def _verdict(
    rows: Sequence[TokenRow],
    stretches: Sequence[Stretch],
    logits: ThreeWay | None,
    kv: Sequence[LayerResult],
    scored: Scored,
    target: LogitsSource,
) -> str:
    if logits is None:
        return "not run: the target gave no logits"
    bad = [row for row in rows if not row.passed]
    if bad:
        why = bad[0].verdict.removeprefix("fail: ")
        return f"fail: {len(bad)} of {len(rows)} positions, first {bad[0].position} ({bad[0].phase}): {why}"
    if stretches:
        s = stretches[0]
        return (
            f"fail: from position {s.start} to {s.stop - 1} ({s.phase}) the error is {s.ratio:.2g} times that of BF16"
        )
    if not logits.passed:
        return logits.verdict
    layers = [layer for layer in kv if layer.outcome in ("fail", "refused")]
    if layers:
        why = layers[0].verdict.partition(": ")[2]
        return f"{layers[0].outcome}: KV cache of layer {layers[0].layer}: {why}"
    verdict = NEAR_TIES if any(row.near_tie for row in rows) else logits.verdict
    return f"{verdict} (top {len(scored.top[0])} log-probabilities)" if scored.top else verdict


def _notes(rows: TokenRows, made: Sequence[TokenRow], scored: Scored, gold: Scored) -> tuple[str, ...]:
    notes = [*gold.notes, *scored.notes]
    ties = [row for row in made if row.near_tie]
    if ties:
        within = sum(row.gap_ulps <= rows.limits.near_tie_ulps for row in ties)
        notes.append(
            f"{len(ties)} of {len(made)} positions are near ties, counted apart: {within} within "
            f"{rows.limits.near_tie_ulps:g} ulps, {len(ties) - within} within the baseline's own error"
        )
    if scored.logits_TV is not None and gold.logits_TV is not None:
        width, extra = gold.logits_TV.shape[1], scored.logits_TV.shape[1] - gold.logits_TV.shape[1]
        if extra > 0:
            notes.append(f"compared on {width} of {width + extra} logits: the target's last {extra} are padding")
    if rows.in_padding:
        notes.append(f"at {rows.in_padding} positions the highest logit lies in the padding; a sampler must mask it")
    if scored.partial:
        notes.append(f"partial: {len(made)} of {len(rows.ids)} positions were seen")
    return tuple(notes)


def _chance(found: ThreeWay | None, noise: float | None, positions: int) -> tuple[str, ...]:
    """Said when only the number of positions lets a comparison pass."""
    if found is None or noise is None or not found.passed or found.bc >= found.bc_limit or found.rms_ratio <= 1:
        return ()
    return (
        f"the pooled error is {found.rms_ratio:.3g} times the baseline's (Bhattacharyya {found.bc:.3f}): chance "
        f"explains up to {noise:.3g} for {positions} positions",
    )


def _pooled(done: Sequence[Validated], limits: TokenLimits) -> ThreeWay | None:
    tallies = [each.tally for each in done if each.tally is not None]
    if not tallies:
        return None
    whole = Tally(tallies[0].dtype, tallies[0].rtol)
    for tally in tallies:
        whole.merge(tally)
    logs = [log for each in done for log in each.log_ratios]
    label = str(whole.dtype).removeprefix("torch.")
    return judge(
        [whole],
        name="all prompts",
        shape=(),
        dtype=label,
        limits=limits.comparison,
        noise_limit=limits.noise_limit(logs) if logs else None,
    )


def _level_verdict(results: Sequence[PromptResult], pooled: ThreeWay | None) -> str:
    outcome = worst(result.outcome for result in results)
    if outcome != "pass":
        some = [result for result in results if result.outcome == outcome]
        why = some[0].verdict.partition(": ")[2]
        if len(results) == 1:
            return some[0].verdict
        return f"{outcome}: {len(some)} of {len(results)} prompts, first {some[0].name!r}: {why}"
    if pooled is not None and not pooled.passed:
        return f"{pooled.outcome}: all prompts together: {pooled.verdict.partition(': ')[2]}"
    if any(result.near_ties for result in results):
        return NEAR_TIES
    return pooled.verdict if pooled is not None else EXPLAINED


def _level_notes(results: Sequence[PromptResult], missing: Sequence[str], *, batched: bool) -> tuple[str, ...]:
    notes = list(dict.fromkeys(note for result in results if result.outcome == "refused" for note in result.notes))
    ties, rows = sum(result.near_ties for result in results), sum(len(result.rows) for result in results)
    if ties:
        notes.append(f"{ties} of {rows} positions are near ties, counted apart")
    ended = [result.name for result in results if result.partial]
    if ended:
        notes.append("partial: " + ", ".join(ended))
    if missing:
        notes.append(", ".join(missing) + " not covered")
    if not batched:
        notes.append("the prompts were served one by one; what a batch does is not covered")
    return tuple(notes)
