"""Level 1: tasks and perplexity of the target and of the reference, on the same items and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_neuron.accuracy import perplexity
from vllm_neuron.accuracy.results import LevelResult, TaskResult, worst
from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.accuracy.tasks import DEFAULT_TEXT, INSTALL, OWN_TASK
from vllm_neuron.accuracy.tasks.thresholds import Thresholds
from vllm_neuron.errors import ConfigError, NonFiniteError, UnsupportedError

if TYPE_CHECKING:
    from vllm_neuron.accuracy.tasks.harness import Scores, Tasks

Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TasksPlan:
    """What level 1 runs.

    Attributes:
        names: tasks of lm_eval; empty for none.
        text: file for perplexity; None for none.
        thresholds: limits.
        limit: only the first so many items of each task.
        download: fetch data sets that are not on this machine.
    """

    names: Sequence[str] = (OWN_TASK,)
    text: Path | None = DEFAULT_TEXT
    thresholds: Thresholds = field(default_factory=Thresholds)
    limit: int | None = None
    download: bool = False


class TasksLevel:
    """Level 1, made ready: everything that may be refused is refused here.

    Args:
        plan: what is run.
        tokenizer: of the model.
        max_length: tokens that both sides take.

    Raises:
        ConfigError: lm_eval is missing; an unknown task, limits for one that does not run, a text that can't be read.
        CheckpointError: a task's data is not on this machine.
    """

    def __init__(self, plan: TasksPlan, tokenizer: Any, *, max_length: int) -> None:
        if not plan.names and plan.text is None:
            raise ConfigError("tasks", "", "a task or a text")
        self.plan, self.tokenizer, self.max_length = plan, tokenizer, max_length
        self.tasks = _tasks(plan) if plan.names else None
        plan.thresholds.check_tasks(list(self.tasks or ()))
        self.text = perplexity.read_text(plan.text, tokenizer, max_length=max_length) if plan.text else None

    def run(
        self, target: LogitsSource, reference: LogitsSource, baseline: LogitsSource | None, say: Say
    ) -> LevelResult:
        """Ask the target, then the reference, then the baseline.

        Args:
            target: what is tested.
            reference: what it is held against.
            baseline: the reference in the dtype that is served; None to leave it out.
            say: told what runs, the requests done, and how many there are.
        """
        begin = time.perf_counter()
        found = [
            *self._run_tasks(target, reference, baseline, say),
            *self._perplexity(target, reference, baseline, say),
        ]
        outcome = worst(each.outcome for each in found)
        failed = [each.task for each in found if not each.passed]
        verdict = f"{outcome}: {', '.join(failed)}" if failed else f"{outcome}: {len(found)} measures"
        partial = any(each.partial for each in found)
        seconds = time.perf_counter() - begin
        return LevelResult(verdict, 1, tasks=tuple(found), seconds=seconds, partial=partial)

    def _run_tasks(
        self, target: LogitsSource, reference: LogitsSource, baseline: LogitsSource | None, say: Say
    ) -> Iterator[TaskResult]:
        if self.tasks is None:
            return
        from vllm_neuron.accuracy.tasks.judge import judge

        try:
            ours = self._scores(target, say)
        except (NonFiniteError, UnsupportedError) as error:
            outcome = "fail" if isinstance(error, NonFiniteError) else "not run"
            for name in self.tasks:
                yield TaskResult(f"{outcome}: {error}", name, self.plan.thresholds.of(name).metric or "")
            return
        theirs = self._scores(reference, say)
        beside = self._scores(baseline, say) if baseline is not None else {}
        for name in self.tasks:
            yield judge(ours[name], theirs[name], beside.get(name), self.plan.thresholds.of(name))

    def _scores(self, source: LogitsSource, say: Say) -> dict[str, Scores]:
        assert self.tasks is not None
        return self.tasks.run(
            source,
            self.tokenizer,
            max_length=self.max_length,
            metrics={name: self.plan.thresholds.of(name).metric for name in self.tasks},
            limit=self.plan.limit,
            progress=lambda done, total: say(f"tasks: {source.name}", done, total),
        )

    def _perplexity(
        self, target: LogitsSource, reference: LogitsSource, baseline: LogitsSource | None, say: Say
    ) -> Iterator[TaskResult]:
        if self.text is None:
            return
        text = self.text

        def losses(source: LogitsSource) -> perplexity.Losses:
            return perplexity.losses(
                source, text, progress=lambda done, total: say(f"perplexity: {source.name}", done, total)
            )

        try:
            ours = losses(target)
        except NonFiniteError as error:
            yield TaskResult(f"fail: {error}", perplexity.TASK, perplexity.METRIC)
            return
        beside = losses(baseline) if baseline is not None else None
        yield perplexity.judge(text, ours, losses(reference), beside, self.plan.thresholds.perplexity)


def _tasks(plan: TasksPlan) -> Tasks:
    try:
        from vllm_neuron.accuracy.tasks.harness import Tasks
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("lm_eval", "datasets"):
            raise
        raise ConfigError(
            "--tasks", ", ".join(plan.names), f"the package {error.name!r} to be there", INSTALL
        ) from None
    return Tasks(plan.names, download=plan.download)
