"""A mark for functions that ``torch.compile`` calls once, while it traces, and whose result a graph holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Decorator: ``torch.compile`` calls the function while it traces and does not look into it.

    In a traced function its arguments must be constants. It is what ``torch.compiler.assume_constant_result`` does,
    without importing ``torch._dynamo``, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
