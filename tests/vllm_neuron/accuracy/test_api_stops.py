"""The ladder when a level stops: the others are kept, and what was finished before Ctrl-C is reported."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.vllm_neuron.accuracy.test_api import cache, run, source, tiny

from tests.vllm_neuron.accuracy.test_api import PROMPTS  # isort: skip
from vllm_neuron.accuracy.accuracy_debugger import api
from vllm_neuron.accuracy.accuracy_debugger.stopping import unfinished
from vllm_neuron.accuracy.accuracy_debugger.tasks_level import TasksPlan
from vllm_neuron.accuracy.results import PromptResult, Report
from vllm_neuron.errors import ConfigError, UnsupportedError

__all__ = ["cache", "tiny"]


class OddError(Exception):
    """Of a package's own, with two lines."""


def stopping(made: Any, error: BaseException, after: int) -> Any:
    """The source, which raises instead of its answer number ``after`` and of all that follow."""
    answer, calls = made.score, []

    def score(prompt_ids, steps):
        calls.append(steps)
        if len(calls) > after:
            raise error
        return answer(prompt_ids, steps)

    made.score = score
    return made


def go(tiny, opened: Any, **options: Any) -> Report:
    folder, tokenizer, package = tiny
    chosen = api.Options(levels=options.pop("levels", (3, 2, 1)), prompts=PROMPTS, tasks=TasksPlan(names=()))
    return api.run(
        folder, opened, tokenizer=tokenizer, max_length=256, target=package, package="llama", options=chosen, **options
    )


def test_a_package_that_raises_in_level_three_keeps_the_others(tiny):
    def broken(model: Any) -> None:
        def forward(*arguments: Any) -> None:
            raise OddError("a first line\nand a second")

        model.layers[1].mlp.forward = forward

    report = run(tiny, source(tiny[0]), target=replace(tiny[2], prepare=broken))
    assert [level.outcome for level in report.levels] == ["fail", "pass", "pass"] and report.outcome == "fail"
    verdict = report.level(3).verdict
    assert verdict.startswith("fail: stopped by OddError: a first line (model.py, line ") and "\n" not in verdict
    assert report.partial and Report.from_json(json.loads(report.dumps())) == report


def test_a_target_that_raises_half_way_keeps_finished_prompts_and_levels(tiny):
    report = run(tiny, stopping(source(tiny[0]), TypeError("no such row"), 1), tasks=TasksPlan(names=()))
    three, two, one = report.levels
    assert three.passed and [prompt.name for prompt in two.prompts] == ["one"] and two.prompts[0].passed
    assert (
        two.verdict.startswith("fail: stopped by TypeError: no such row (") and "test_api_stops.py, line" in two.verdict
    )
    assert two.partial and one.outcome == "fail" and "TypeError" in one.verdict
    assert report.verdict.startswith("fail: level 2, stopped by TypeError")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConfigError("engine", 1, "another"), "refused"),
        (UnsupportedError("engine", 1, "x"), "not run"),
        (OSError(12, "no memory"), "fail"),
    ],
)
def test_a_target_that_does_not_start_keeps_level_three(tiny, error, outcome):
    def never() -> Any:
        raise error

    report = go(tiny, never)
    assert [level.outcome for level in report.levels] == ["pass", outcome, outcome] and report.outcome == outcome
    assert report.target == "not started"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
@pytest.mark.parametrize("closes", [True, False])
def test_ctrl_c_closes_the_target_and_keeps_what_is_finished(tiny, error, closes):
    kept: list[Report] = []
    said: list[str] = []

    @contextmanager
    def opened():
        try:
            yield stopping(source(tiny[0]), error, 1)
        finally:
            said.append("closed")
            if not closes:
                raise OddError("shutdown")

    def keep(report: Report) -> None:
        assert said == ["closed"]
        kept.append(report)

    with pytest.raises(type(error)):
        go(tiny, opened, keep=keep)
    (report,) = kept
    assert (
        report.partial
        and report.outcome == "not run"
        and report.notes == ("interrupted: only what was finished is here",)
    )
    assert [level.outcome for level in report.levels] == ["pass", "not run", "not run"]
    assert [prompt.name for prompt in report.level(2).prompts] == ["one"]
    assert not report.level(3).partial and report.level(2).partial and report.level(1).partial


def test_a_target_that_does_not_close_is_noted(tiny):
    @contextmanager
    def opened():
        yield source(tiny[0])
        raise OddError("shutdown")

    report = go(tiny, opened, levels=(2,))
    assert report.passed and "not shut down properly: stopped by OddError: shutdown" in report.notes[0]


def test_a_prompt_that_failed_before_ctrl_c_is_the_verdict():
    bad = PromptResult("fail: 1 of 2 positions", "long", (1, 2))
    level = unfinished(2, "not run: interrupted", prompts=[PromptResult("pass", "short", (1,)), bad])
    assert level.verdict == "fail: 'long': 1 of 2 positions; then interrupted" and level.partial
