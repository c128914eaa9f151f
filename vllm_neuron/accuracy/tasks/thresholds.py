"""Limits of level 1 from a TOML or JSON file: what a task's score has to keep. Strict: a wrong name is an error.

::

    [tasks.plain_facts]
    metric = "acc"        # one of the task's; default: its first
    min_score = 0.6       # the target's own score
    max_drop = 0.02       # how far below the reference it may be, beyond chance

    [perplexity]
    max_increase = 0.01   # of the mean loss against the reference, in nats a token
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vllm_neuron.errors import ConfigError, nearest

SECTIONS = ("tasks", "perplexity")


@dataclass(frozen=True)
class TaskThreshold:
    """Limits of one task.

    Attributes:
        metric: the metric that is judged; None for the task's first.
        min_score: the target's score, 0 to 1; None for no limit.
        max_drop: how far the target may be below the reference on the same items, 0 to 1, when that is no chance.
    """

    metric: str | None = None
    min_score: float | None = None
    max_drop: float = 0.0


@dataclass(frozen=True)
class PerplexityThreshold:
    """Limit of perplexity: the mean loss may be ``max_increase`` nats a token above the reference's."""

    max_increase: float = 0.01


@dataclass(frozen=True)
class Thresholds:
    """All limits; a task without an entry has the defaults."""

    tasks: Mapping[str, TaskThreshold] = field(default_factory=dict)
    perplexity: PerplexityThreshold = PerplexityThreshold()

    def of(self, task: str) -> TaskThreshold:
        """The limits of one task."""
        return self.tasks.get(task, TaskThreshold())

    def check_tasks(self, known: Iterable[str]) -> None:
        """Refuse limits for tasks that do not run.

        Raises:
            ConfigError: a task in the file that is not among ``known``.
        """
        names = list(known)
        for name in self.tasks:
            if name not in names:
                raise ConfigError(f"thresholds.tasks.{name}", name, "a task that runs", nearest(name, names))


def load_thresholds(path: Path) -> Thresholds:
    """Read a file of limits.

    Args:
        path: ``.toml`` or ``.json``.

    Raises:
        ConfigError: it can't be read or parsed, or a key, a type or a range in it is wrong.
    """
    values = _parse(path)
    _keys(values, SECTIONS, "thresholds")
    tasks = _table(values.get("tasks", {}), "thresholds.tasks")
    return Thresholds(
        {name: _task(_table(given, f"thresholds.tasks.{name}"), name) for name, given in tasks.items()},
        _perplexity(_table(values.get("perplexity", {}), "thresholds.perplexity")),
    )


def _parse(path: Path) -> Mapping[str, Any]:
    if path.suffix not in (".toml", ".json"):
        raise ConfigError("--thresholds", str(path), "a .toml or .json file")
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError("--thresholds", str(path), f"a file that can be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError("--thresholds", str(path), f"valid {path.suffix[1:].upper()} ({error})") from None
    return _table(values, "thresholds")


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(where, value, "a table of names and values")
    return value


def _keys(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}.{key}", values[key], "a known key", nearest(key, names))


def _task(values: Mapping[str, Any], name: str) -> TaskThreshold:
    where = f"thresholds.tasks.{name}"
    _keys(values, [f.name for f in fields(TaskThreshold)], where)
    metric = values.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise ConfigError(f"{where}.metric", metric, "the name of a metric")
    return TaskThreshold(
        metric,
        _number(values["min_score"], f"{where}.min_score", 1.0) if "min_score" in values else None,
        _number(values.get("max_drop", 0.0), f"{where}.max_drop", 1.0),
    )


def _perplexity(values: Mapping[str, Any]) -> PerplexityThreshold:
    where = "thresholds.perplexity"
    _keys(values, [f.name for f in fields(PerplexityThreshold)], where)
    default = PerplexityThreshold().max_increase
    return PerplexityThreshold(_number(values.get("max_increase", default), f"{where}.max_increase", None))


def _number(value: Any, where: str, most: float | None) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 0 or value == float("inf") or (most is not None and value > most):
        raise ConfigError(where, value, "a number of 0 or more" if most is None else f"a number from 0 to {most:g}")
    return float(value)
