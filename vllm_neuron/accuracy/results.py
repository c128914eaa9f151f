"""What a comparison found: frozen records that validation, bisection and reports share, and their JSON form.

Three tensors meet in a comparison. *Expected* is the gold (Hugging Face in fp32), *baseline* is Hugging Face in the
dtype that is served (bf16), *target* is what is tested. An error is a tensor minus the gold.

Verdicts are sentences that begin with the outcome: ``pass: what BF16 explains``, ``pass: near ties only``,
``fail: ...``, ``refused: prompt ids differ at 0``, ``not run: ...``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_neuron.accuracy.record import decode, encode
from vllm_neuron.errors import ConfigError

SCHEMA = 1
Outcome = Literal["pass", "fail", "refused", "not run"]
Phase = Literal["prefill", "decode"]
EXPLAINED = "pass: what BF16 explains"
NEAR_TIES = "pass: near ties only"
_ORDER: tuple[Outcome, ...] = ("pass", "not run", "fail", "refused")


def outcome_of(verdict: str) -> Outcome:
    """The outcome that a verdict begins with.

    Raises:
        ConfigError: the text begins with no outcome.
    """
    for outcome in _ORDER:
        if verdict == outcome or verdict.startswith(f"{outcome}:"):
            return outcome
    raise ConfigError("verdict", verdict, "a sentence that begins with " + ", ".join(f"'{each}:'" for each in _ORDER))


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The one that decides: refused over fail over not run over pass; ``not run`` when there is none."""
    return max(outcomes, key=_ORDER.index, default="not run")


@dataclass(frozen=True)
class _Judged:
    """Anything with a verdict."""

    verdict: str

    def __post_init__(self) -> None:
        outcome_of(self.verdict)

    @property
    def outcome(self) -> Outcome:
        """The verdict's first word."""
        return outcome_of(self.verdict)

    @property
    def passed(self) -> bool:
        """The outcome is ``pass``."""
        return self.outcome == "pass"


@dataclass(frozen=True)
class ErrorStats:
    """Sizes of one difference between two tensors of ``count`` elements.

    Attributes:
        rms: root of the mean square.
        l2: Euclidean norm.
        linf: largest absolute value.
        bias: mean, with its sign.
        relative: rms over the rms of the expected tensor; inf when that one is zero and the difference is not.
        count: elements.
    """

    rms: float
    l2: float
    linf: float
    bias: float
    relative: float
    count: int


@dataclass(frozen=True)
class Worst:
    """The element that is worst in a comparison.

    Attributes:
        index: its index; the first number is the tensor's place when a list of tensors was compared.
        target, expected, baseline: its three values.
    """

    index: tuple[int, ...]
    target: float
    expected: float
    baseline: float


@dataclass(frozen=True)
class ThreeWay(_Judged):
    """Target against expected, measured by what baseline does (see ``accuracy.testing``).

    Attributes:
        name: what was compared.
        shape, dtype: of the target; shape is empty when several tensors were pooled.
        target: target minus expected. baseline: baseline minus expected. between: target minus baseline. None when
            there was nothing to measure (shapes differ, values that are not finite).
        bc: Bhattacharyya coefficient of the two error distributions, 0 to 1; bc_limit: what it had to reach, 0 when the
            error is within rtol and that decides.
        rms_ratio, linf_ratio, l2_ratio: error of the target over that of the baseline, after the floor.
        worst: the worst element; None when there was nothing to measure.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    target: ErrorStats | None = None
    baseline: ErrorStats | None = None
    between: ErrorStats | None = None
    bc: float = 0.0
    bc_limit: float = 0.0
    rms_ratio: float = 0.0
    linf_ratio: float = 0.0
    l2_ratio: float = 0.0
    worst: Worst | None = None


@dataclass(frozen=True)
class Candidate:
    """One token at one position: its id, text (empty when no tokenizer is at hand) and logit."""

    id: int
    logit: float
    text: str = ""


@dataclass(frozen=True)
class TokenRow(_Judged):
    """One position of one prompt: the logits for the token that follows it.

    Attributes:
        position: index in the prompt ids; phase: how the target came to it.
        token: id at the position; gold: the id that follows in the text, None at the end.
        expected_top, target_top, baseline_top: the highest logits of each, descending.
        near_tie: the highest tokens differ, and their gold logits are within the stated ulps of each other.
        gap_ulps: distance of the two in the gold, in ulps of bf16 at their size; 0 when the highest tokens agree.
        top1: the highest tokens are the same. overlap: share of the k highest that both have.
        kl, baseline_kl: KL(expected || target) and KL(expected || baseline), in nats.
        gold_rank, expected_rank: place of the gold token among the target's and the expected logits, 0 the highest.
        rms, baseline_rms: errors over the vocabulary; linf, baseline_linf: the largest.
        rms_ratio, linf_ratio: target over baseline, after the floor.
    """

    position: int
    phase: Phase
    token: int
    gold: int | None
    expected_top: tuple[Candidate, ...] = ()
    target_top: tuple[Candidate, ...] = ()
    baseline_top: tuple[Candidate, ...] = ()
    near_tie: bool = False
    gap_ulps: float = 0.0
    top1: bool = True
    overlap: float = 1.0
    kl: float = 0.0
    baseline_kl: float = 0.0
    gold_rank: int | None = None
    expected_rank: int | None = None
    rms: float = 0.0
    baseline_rms: float = 0.0
    linf: float = 0.0
    baseline_linf: float = 0.0
    rms_ratio: float = 0.0
    linf_ratio: float = 0.0


@dataclass(frozen=True)
class LayerResult(_Judged):
    """One layer: its KV cache, or what it gives.

    Attributes:
        layer: index. name: of the cache layer or module.
        kind: ``kv`` or ``hidden``.
        tensors: the comparisons; for a cache ``keys`` and ``values``.
        errors, baseline_errors: relative error at each position from ``start`` on (the row of a heat map).
        start: position of the first of them.
    """

    layer: int
    name: str
    kind: Literal["kv", "hidden"]
    tensors: tuple[ThreeWay, ...] = ()
    errors: tuple[float, ...] = ()
    baseline_errors: tuple[float, ...] = ()
    start: int = 0


@dataclass(frozen=True)
class Place:
    """Where a fault is.

    Attributes:
        layer: index; None outside the layers (embedding, last norm, head).
        block: ``attn``, ``mlp``, ``norm``, ``embed``, ``head``, ...
        ours, theirs: module names of the package and of the Hugging Face model.
        kind: ``local``: wrong with right inputs; ``propagated``: wrong because its inputs are.
        evidence: the numbers that say so, in words.
        phase: how the tokens were run when it shows (``prefill``, ``decode``, ``decode, TP 2``, ...); None when in all.
        position: first position where it shows, if known.
        part: what in the block is wrong (``rotary``, ``mask``, ``cache write``, ``eps``, ...); "" when not told apart.
    """

    layer: int | None
    block: str
    ours: str
    theirs: str
    kind: Literal["local", "propagated"] = "local"
    evidence: str = ""
    phase: str | None = None
    position: int | None = None
    part: str = ""

    def words(self) -> str:
        """``layer 3, attn: rotary (prefill)``."""
        where = self.block if self.layer is None else f"layer {self.layer}, {self.block}"
        where = f"{where}: {self.part}" if self.part else where
        return f"{where} ({self.phase})" if self.phase else where


@dataclass(frozen=True)
class PromptResult(_Judged):
    """Level 2, one prompt.

    Attributes:
        name: of the prompt. ids: what was asked for. seen_ids: what the target ran.
        steps: how many of the last tokens were decoded one by one; the others were prefilled.
        rows: one a compared position.
        logits: all compared logits in one comparison; None when refused.
        layers: the KV cache, layer by layer; empty when the target can't show it.
        diverges_at: first position whose row fails.
        place: the guilty module, when it was looked for.
        coverage: what this prompt reaches (see ``accuracy.prompts``).
        scatter: some elements as (expected, target, baseline), for a plot.
        notes: what was left out or counted apart.
        partial: the target ended before all positions were seen.
    """

    name: str
    ids: tuple[int, ...]
    seen_ids: tuple[int, ...] = ()
    steps: int = 0
    rows: tuple[TokenRow, ...] = ()
    logits: ThreeWay | None = None
    layers: tuple[LayerResult, ...] = ()
    diverges_at: int | None = None
    place: Place | None = None
    coverage: tuple[str, ...] = ()
    scatter: tuple[tuple[float, float, float], ...] = ()
    notes: tuple[str, ...] = ()
    partial: bool = False

    @property
    def near_ties(self) -> int:
        """Positions counted apart."""
        return sum(row.near_tie for row in self.rows)

    @property
    def top1_agreement(self) -> float:
        """Share of positions with the same highest token; 0 when none was compared."""
        return sum(row.top1 for row in self.rows) / len(self.rows) if self.rows else 0.0


@dataclass(frozen=True)
class BlockResult(_Judged):
    """Level 3, one block of the package against its Hugging Face module.

    Attributes:
        layer: index; None outside the layers.
        block: ``attn``, ``mlp``, ``norm``, ... ours, theirs: module names.
        dtype: ``float32`` or ``bfloat16``. phase: how the block was run.
        comparison: the numbers; None when the block could not be run.
        notes: what was left out.
    """

    layer: int | None
    block: str
    ours: str
    theirs: str
    dtype: str
    phase: Phase
    comparison: ThreeWay | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskResult(_Judged):
    """Level 1, one task or measure.

    Attributes:
        task, metric: e.g. ``arc_easy`` and ``acc``, or ``perplexity`` and ``nats per token``.
        score, reference: of the target and of Hugging Face on the same items; None when not run.
        items: how many. error: standard error of the score (binomial for a share).
        threshold: what the score, or its distance from the reference, had to keep; None when none is set.
        agreement: share of items with the same answer on both sides, if known.
        notes: what was left out. partial: the target ended before all items were seen.
    """

    task: str
    metric: str
    score: float | None = None
    reference: float | None = None
    items: int = 0
    error: float | None = None
    threshold: float | None = None
    agreement: float | None = None
    notes: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class LevelResult(_Judged):
    """One level: 1 tasks, 2 tokens, 3 modules; only the list of its level is filled.

    Attributes:
        level: 1, 2 or 3.
        seconds: wall time.
        logits: level 2: all prompts pooled.
        coverage, not_covered: level 2: what the prompts reach and what they do not.
        partial: something was cut short.
    """

    level: int
    tasks: tuple[TaskResult, ...] = ()
    prompts: tuple[PromptResult, ...] = ()
    blocks: tuple[BlockResult, ...] = ()
    logits: ThreeWay | None = None
    place: Place | None = None
    coverage: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    partial: bool = False


@dataclass(frozen=True)
class Report(_Judged):
    """A whole validation.

    Attributes:
        model, package, target: what was validated and how it was run, in words.
        reference: the gold and the baseline, in words.
        levels: in the order they ran.
        place: the guilty module, when one was found.
        versions: package name -> version.
        created: UTC time, ISO 8601. seconds: wall time. peak_gib: of this process's memory.
        partial: something was cut short; its notes say what.
        schema: version of this format.
    """

    model: str
    package: str
    target: str
    reference: str
    levels: tuple[LevelResult, ...] = ()
    place: Place | None = None
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    seconds: float = 0.0
    peak_gib: float = 0.0
    partial: bool = False
    schema: int = SCHEMA

    def level(self, number: int) -> LevelResult | None:
        """The result of one level, None when it was not asked for."""
        return next((level for level in self.levels if level.level == number), None)

    def to_json(self) -> dict[str, Any]:
        """What ``json`` writes; :meth:`from_json` reads it back to an equal report."""
        encoded: dict[str, Any] = encode(self)
        return encoded

    def dumps(self) -> str:
        """JSON text, strict: NaN and infinity are strings."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """The report of a parsed JSON file.

        Raises:
            ConfigError: another schema, an unknown or missing key, a value of another type.
        """
        if isinstance(value, Mapping) and value.get("schema") != SCHEMA:
            raise ConfigError("Report.schema", value.get("schema"), str(SCHEMA), "Run the validation again.")
        return decode(cls, value)
