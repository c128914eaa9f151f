"""Levels that do not come to their end: what their verdict says, and what is kept of them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vllm_neuron.accuracy.results import LevelResult, PromptResult, worst
from vllm_neuron.errors import CheckpointError, ConfigError, NeuronError, UnsupportedError

# What ends a validation as a whole: Ctrl-C, and the exit that a handler of SIGTERM asks for.
ENDS = (KeyboardInterrupt, SystemExit)
CUT = "interrupted"


class Kept:
    """A context in which an error of one level ends that level only.

    Any class of error is meant, since a package or an engine may define its own; what :data:`ENDS` names goes on.

    Args:
        told: called with the error.
    """

    def __init__(self, told: Callable[[Exception], None]) -> None:
        self.told = told

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error.__context__, ENDS):
            # What failed is the tidying up after Ctrl-C.
            raise error.__context__ from error
        self.told(error)
        return True


def verdict_of(error: Exception, factory: Any) -> str:
    """One line: an input that can't be used is refused, what is not supported is not run, everything else failed.

    Args:
        error: as it was caught.
        factory: class of the package under test, whose files are named first; None when there is none.
    """
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ConfigError | CheckpointError):
        return f"refused: {text}"
    if isinstance(error, UnsupportedError):
        return f"not run: {text}"
    words = text if isinstance(error, NeuronError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    return f"fail: stopped by {words}{_place(error, factory)}"


def unfinished(level: int, verdict: str, *, prompts: Sequence[PromptResult] = (), seconds: float = 0.0) -> LevelResult:
    """A level that was cut short.

    Args:
        level: its number. verdict: why it ended.
        prompts: level 2: those that are finished; one that failed stays the level's verdict.
        seconds: until it ended.
    """
    outcome = worst([LevelResult(verdict, level).outcome, *(each.outcome for each in prompts)])
    why = verdict.partition(": ")[2]
    if not verdict.startswith(outcome):
        first = next(each for each in prompts if each.outcome == outcome)
        verdict = f"{outcome}: {first.name!r}: {first.verdict.partition(': ')[2]}; then {why}"
    notes = [f"{len(prompts)} prompts were finished before; what they cover was not counted"] if prompts else []
    place = next((each.place for each in prompts if each.place is not None), None)
    return LevelResult(
        verdict, level, prompts=tuple(prompts), place=place, notes=tuple(notes), seconds=seconds, partial=True
    )


def _place(error: Exception, factory: Any) -> str:
    """`` (file, line N)``: the innermost frame in the package's own files, else the innermost one of all."""
    root = None if factory is None else Path(inspect.getfile(factory)).parent
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if root is not None and Path(frame.filename).is_relative_to(root)]
    for frame in (own or frames)[-1:]:
        path = Path(frame.filename)
        name = path.relative_to(root) if own and root is not None else Path(*path.parts[-3:])
        return f" ({name.as_posix()}, line {frame.lineno})"
    return ""
