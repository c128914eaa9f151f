"""Standard output whose failures have names: a reader that went away, and a place that takes no more bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar, cast

from onboard.errors import RunError

T = TypeVar("T")


class PipeClosedError(Exception):
    """The reader of standard output went away. No ``OSError``: libraries on the way would take that for theirs."""


class OutputError(RunError):
    """Standard output could not be written."""


class _Guarded:
    """A stream whose writes raise the errors above; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return _named(lambda: self._stream.write(text))

    def flush(self) -> None:
        _named(self._stream.flush)


def _named(action: Callable[[], T]) -> T:
    try:
        return action()
    except BrokenPipeError:
        raise PipeClosedError from None
    except OSError as error:
        raise OutputError(
            "standard output",
            error.strerror or str(error),
            "a place that takes the whole output",
            "Make room there, or send the output elsewhere.",
        ) from None


@contextmanager
def guarded() -> Iterator[None]:
    """``sys.stdout`` with named failures for the time of the block."""
    before = sys.stdout
    sys.stdout = cast(TextIO, _Guarded(before))
    try:
        yield
    finally:
        sys.stdout = before


def silence() -> None:
    """Point stdout at the null device, so that the interpreter's last flush can't fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
