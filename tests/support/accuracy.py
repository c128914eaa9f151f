"""Reports of validations made by hand, for the tests of their views."""

from __future__ import annotations

import math
from typing import Any

from vllm_neuron.accuracy.results import (
    EXPLAINED,
    BlockResult,
    Candidate,
    ErrorStats,
    LayerResult,
    LevelResult,
    Place,
    PromptResult,
    Report,
    TaskResult,
    ThreeWay,
    TokenRow,
    Worst,
)

NASTY = '<script src="http://evil.example/x.js">&\'"\u202e\x1b[31m|`'


def three_way(name: str = "logits", ratio: float = 1.0, verdict: str = EXPLAINED) -> ThreeWay:
    """A comparison whose target errs ``ratio`` times as much as the baseline."""
    target, baseline = (ErrorStats(0.01 * r, 0.1 * r, 0.05 * r, 0.0, 0.002 * r, 100) for r in (ratio, 1.0))
    worst = Worst((3, 17), 1.5, 1.25, 1.375)
    return ThreeWay(
        verdict, name, (10, 10), "bfloat16", target, baseline, baseline, 0.995, 0.99, ratio, ratio, ratio, worst
    )


def row(position: int, **changes: Any) -> TokenRow:
    """One position: prefilled up to 30, decoded then."""
    values: dict[str, Any] = {
        "verdict": EXPLAINED,
        "position": position,
        "phase": "prefill" if position < 30 else "decode",
        "token": 7,
        "gold": 8,
        "expected_top": (Candidate(8, 17.25, " Paris"), Candidate(9, 14.0, NASTY)),
        "target_top": (Candidate(8, 17.0, " Paris"), Candidate(9, 14.5)),
        "baseline_top": (Candidate(8, 17.125, " Paris"),),
        "kl": 1e-5 * (1 + position % 7),
        "baseline_kl": 1e-5,
        "gold_rank": 0,
        "expected_rank": 0,
        "rms": 0.01 + 0.001 * (position % 5),
        "baseline_rms": 0.01,
    }
    return TokenRow(**(values | changes))


def layer(index: int, length: int, ratio: float = 1.0, verdict: str = EXPLAINED) -> LayerResult:
    """The cache of one layer."""
    errors = tuple(0.001 * ratio * (1 + i % 3) for i in range(length))
    beside = tuple(0.001 * (1 + i % 3) for i in range(length))
    tensors = (three_way("keys", ratio, verdict), three_way("values", ratio, verdict))
    return LayerResult(verdict, index, f"layers.{index}.attn", "kv", tensors, errors, beside)


def prompt(name: str, length: int = 40, depth: int = 3, **changes: Any) -> PromptResult:
    """One prompt whose logits are what BF16 explains."""
    scatter = tuple((x := math.sin(i) * 9, x + 0.01, x - 0.02) for i in range(300))
    values: dict[str, Any] = {
        "verdict": EXPLAINED,
        "name": name,
        "ids": tuple(range(length)),
        "seen_ids": tuple(range(length)),
        "steps": max(0, length - 30),
        "rows": tuple(row(i) for i in range(length)),
        "logits": three_way(),
        "layers": tuple(layer(i, length) for i in range(depth)),
        "coverage": ("past position 256",),
        "scatter": scatter,
        "notes": ("2 columns of padding were left out",),
    }
    return PromptResult(**(values | changes))


def block(layer: int | None, name: str, ratio: float = 1.0, verdict: str = EXPLAINED, **changes: Any) -> BlockResult:
    """One block at level 3."""
    ours, theirs = f"layers.{layer}.{name}", f"model.layers.{layer}.self_{name}"
    values: dict[str, Any] = {"dtype": "bfloat16", "phase": "prefill", "comparison": three_way(name, ratio, verdict)}
    return BlockResult(verdict, layer, name, ours, theirs, **(values | changes))


def passing(model: str = "tiny") -> Report:
    """Every level passes."""
    blocks = tuple(block(i, name) for i in range(3) for name in ("attn", "mlp"))
    task = TaskResult("pass: 0.90 against 0.90", "plain_facts", "acc", 0.9, 0.9, 48, 0.043, None, 1.0)
    return Report(
        EXPLAINED,
        model,
        "a package",
        "engine in this process, bfloat16",
        "Hugging Face fp32, baseline bf16",
        (
            LevelResult(EXPLAINED, 3, blocks=blocks, seconds=1.5),
            LevelResult(
                EXPLAINED, 2, prompts=(prompt("short"), prompt("long", 60)), not_covered=("window",), seconds=9.0
            ),
            LevelResult("pass: 1 task", 1, tasks=(task,), seconds=3.0),
        ),
        versions={"torch": "2.13.0"},
        created="2026-01-02T03:04:05Z",
        seconds=13.5,
        peak_gib=2.5,
    )


def failing(model: str = "tiny") -> Report:
    """Level 3 and 2 fail at one place; one prompt is refused, one partial; all names are nasty."""
    place = Place(
        1, "attn", f"layers.1.attn{NASTY}", "model.layers.1.self_attn", evidence=f"8.0 times {NASTY}", phase="decode"
    )
    verdict = f"fail: at layer 1, attn (decode) {NASTY}"
    bad = row(37, verdict=verdict, kl=2.5, top1=False)
    rows = (
        *(row(i) for i in range(36)),
        row(36, near_tie=True, top1=False, verdict="pass: near ties only"),
        bad,
        row(38, rms=math.nan, kl=math.inf),
    )
    prompts = (
        prompt(
            NASTY,
            verdict=verdict,
            rows=rows,
            layers=(layer(0, 40), layer(1, 40, 8.0, verdict)),
            diverges_at=37,
            place=place,
        ),
        prompt(
            "bos",
            verdict="refused: prompt ids differ at 0",
            seen_ids=(1, 2),
            rows=(),
            logits=None,
            layers=(),
            scatter=(),
        ),
        prompt("cut", verdict="not run: the server ended", partial=True, rows=(), logits=None, layers=(), scatter=()),
    )
    blocks = (
        block(0, "attn"),
        block(1, "attn", 8.0, verdict),
        block(None, "head", comparison=None, verdict="not run: no head"),
    )
    task = TaskResult("fail: 0.2 against 0.9", NASTY, "acc", 0.2, 0.9, 48, 0.06, 0.6, 0.3, (NASTY,), True)
    return Report(
        verdict,
        model,
        NASTY,
        NASTY,
        "Hugging Face fp32",
        (
            LevelResult(verdict, 3, blocks=blocks, place=place),
            LevelResult(verdict, 2, prompts=prompts, notes=(NASTY,), partial=True),
            LevelResult("fail: 1 task", 1, tasks=(task,)),
        ),
        place=place,
        notes=("the server ended", NASTY),
        partial=True,
    )
