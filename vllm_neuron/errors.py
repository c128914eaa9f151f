"""Exceptions of this project.

Every message has four parts: the field, the value that was met, what was expected, and what to do next. Code that
raises passes them apart, so that a command can print them as text or as JSON.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class NeuronError(Exception):
    """Base of all errors that a user can cause and mend.

    Args:
        field: dotted name of what is wrong, e.g. ``neuron_config.num_seqs_buckets``.
        value: the value met (shown with ``repr``, cut at 200 characters).
        expected: what would have been right, in words.
        action: the next thing to do, as an instruction.
    """

    def __init__(self, field: str, value: Any, expected: str, action: str = "") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        self.action = action
        super().__init__(self._text())

    def _text(self) -> str:
        shown = repr(self.value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        text = f"{self.field}: got {shown}, expected {self.expected}."
        return f"{text} {self.action}" if self.action else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.field, self.value, self.expected, self.action))

    def as_dict(self) -> dict[str, Any]:
        """The parts, for JSON output."""
        return {
            "error": type(self).__name__,
            "field": self.field,
            "value": repr(self.value),
            "expected": self.expected,
            "action": self.action,
        }


class ConfigError(NeuronError):
    """A configuration value, key or environment variable that can't be honoured."""


class CheckpointError(NeuronError):
    """Checkpoint files that are missing, damaged, incomplete or in a format that can't be read."""


class UnsupportedError(NeuronError):
    """A model, an option or a request that is well formed but not supported here."""


class ShapeError(NeuronError):
    """A tensor or a batch whose shape fits no compiled graph, bucket or operation."""


class OperationError(NeuronError):
    """A call of a functional operation with arguments that it does not take."""


class KernelError(OperationError):
    """A kernel that does what the hardware can't, or that fails while it runs.

    Args:
        kernel: the kernel's name.
        argument: the primitive and its argument, or the kernel's own argument, e.g. ``nc_matmul.moving``.
        value: the value met.
        limit: what the hardware, or the kernel, takes.
        where: ``file:line`` in the kernel.
        action: the next thing to do.
    """

    def __init__(self, kernel: str, argument: str, value: Any, limit: str, where: str = "", action: str = "") -> None:
        self.kernel = kernel
        self.argument = argument
        self.limit = limit
        self.where = where
        super().__init__(f"kernel {kernel}: {argument}", value, f"{limit} ({where})" if where else limit, action)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.kernel, self.argument, self.value, self.limit, self.where, self.action))


class NonFiniteError(NeuronError):
    """Logits that are NaN or infinite where a probability is needed."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"Did you mean 'x'?"`` for the closest known name, or the list of names when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known names: {', '.join(names)}."
