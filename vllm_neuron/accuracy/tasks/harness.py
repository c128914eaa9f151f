"""Tasks of lm_eval by name, run on one source: a score for each item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.accuracy.tasks import FOLDER, INSTALL, OWN_TASK
from vllm_neuron.accuracy.tasks.model import Progress, SourceLM
from vllm_neuron.accuracy.tasks.quiet import Quiet
from vllm_neuron.errors import CheckpointError, ConfigError, nearest


@dataclass(frozen=True)
class Item:
    """One document of a task on one side.

    Attributes:
        value: the metric.
        answer: what the side chose, comparable between sides: the number of a choice, or a text.
    """

    value: float
    answer: Any


@dataclass(frozen=True)
class Scores:
    """One task on one side.

    Attributes:
        task, metric: names.
        items: document id -> what came out; only answered documents.
        asked: documents in all.
        score: lm_eval's own figure, over all documents.
        higher_is_better: of the metric.
        notes: what a reader should know.
    """

    task: str
    metric: str
    items: Mapping[int, Item]
    asked: int
    score: float
    higher_is_better: bool = True
    notes: tuple[str, ...] = ()


class Tasks:
    """The tasks of one validation.

    Args:
        names: of lm_eval's tasks, groups or tags, or paths of a task's YAML file.
        download: fetch data sets that are not on this machine.

    Raises:
        ConfigError: an unknown task, or lm_eval is not installed.
        CheckpointError: a task's data is not on this machine, and ``download`` is off.
    """

    def __init__(self, names: Sequence[str], *, download: bool = False) -> None:
        self.names = list(dict.fromkeys(names))
        with Quiet():
            manager = _manager(self.names)
            for name in self.names:
                if name not in manager.task_index and not _is_file(name):
                    raise ConfigError("--tasks", name, "a task of lm_eval", nearest(name, manager.all_tasks))
            self.loaded = _load(manager, self.names, download)

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded["tasks"])

    def run(
        self,
        source: LogitsSource,
        tokenizer: Any,
        *,
        max_length: int,
        metrics: Mapping[str, str | None],
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Scores]:
        """Every task on one source.

        Args:
            source: gives the logits.
            tokenizer: of the model.
            max_length: tokens that the source takes.
            metrics: task -> the metric to report; a task's first when None or left out.
            limit: only the first so many documents of each task.
            progress: called after each request.

        Raises:
            ConfigError: a metric that the task does not have.
        """
        from lm_eval.evaluator import evaluate

        with Quiet() as quiet:
            model = SourceLM(source, tokenizer, max_length=max_length, progress=quiet.loud(progress))
            for task in self.loaded["tasks"].values():
                if task.get_config("num_fewshot") is None:
                    task.set_config(key="num_fewshot", value=0)
                task.set_fewshot_seed(seed=1234)
            found = evaluate(model, self.loaded, limit=limit, bootstrap_iters=0, log_samples=True)
        assert found is not None
        return {
            name: _scores(name, task, found["samples"][name], model, metrics.get(name))
            for name, task in self.loaded["tasks"].items()
        }


def _scores(name: str, task: Any, samples: Sequence[Mapping[str, Any]], model: SourceLM, metric: str | None) -> Scores:
    known = [each["metric"] for each in task.config.metric_list or ()] or list(samples[0]["metrics"])
    if metric is None:
        metric = known[0]
    if metric not in samples[0]:
        raise ConfigError(f"thresholds.tasks.{name}.metric", metric, "a metric of the task", nearest(metric, known))
    chosen = [each for each in samples if each["filter"] == samples[0]["filter"]]
    value = chosen[0][metric]
    if not isinstance(value, int | float):
        raise ConfigError(f"tasks.{name}", metric, "a metric with one number an item", f"It has: {', '.join(known)}.")
    items = {
        int(each["doc_id"]): Item(float(each[metric]), _answer(each))
        for each in chosen
        if (name, each["doc_id"]) not in model.unanswered
    }
    notes = (
        [f"the context of {model.shortened} requests was cut to {model.max_length} tokens"] if model.shortened else []
    )
    if model.ended is not None:
        notes.append(f"{model.source.name}: {model.ended}")
    values = [item.value for item in items.values()]
    mean = sum(values) / len(values) if values else float("nan")
    return Scores(name, metric, items, len(chosen), mean, bool(task.higher_is_better().get(metric, True)), tuple(notes))


def _answer(sample: Mapping[str, Any]) -> Any:
    """The number of the likeliest choice, or the text that was made."""
    found = sample["filtered_resps"]
    if found and isinstance(found[0], tuple | list):
        likelihoods = [each[0] for each in found]
        return likelihoods.index(max(likelihoods)) if len(likelihoods) > 1 else bool(found[0][1])
    return str(found[0]) if found else None


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def _manager(names: Sequence[str]) -> Any:
    """Our own tasks alone when that is enough: reading lm_eval's own takes seconds."""
    return _index(all(name == OWN_TASK or _is_file(name) for name in names))


@cache
def _index(own: bool) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(FOLDER), include_defaults=not own)


def _load(manager: Any, names: Sequence[str], download: bool) -> Any:
    try:
        with _network(download):
            return manager.load(list(names))
    except ModuleNotFoundError as error:
        raise ConfigError("--tasks", ", ".join(names), f"the module {error.name!r}", INSTALL) from None
    except (OSError, ValueError) as error:
        # datasets and the hub raise subclasses of these when the data is not here.
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        action = "Allow the download with --download, or choose plain_facts." if not download else ""
        raise CheckpointError(f"tasks {', '.join(names)}", first, "data that can be loaded", action) from None


@contextmanager
def _network(allowed: bool) -> Iterator[None]:
    """The hub's and the data sets' libraries without network, unless it is allowed."""
    import datasets
    import huggingface_hub.constants as hub

    if allowed:
        yield
        return
    before = (datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE)
    datasets.config.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE = before
