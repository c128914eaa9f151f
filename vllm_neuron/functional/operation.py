"""What an operation is, and the dispatcher that picks its kernel and says so.

An operation is its ``reference`` in plain torch, which is the specification and takes every argument, plus any number
of kernels. A kernel has the reference's signature and a ``supports`` rule that answers yes or why not. A call takes the
first kernel of the current target that says yes; each refusal is counted, and logged once for each distinct reason.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from vllm_neuron import envs
from vllm_neuron.errors import OperationError, nearest

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Support:
    """Whether a kernel takes a call; when not, which field of which value breaks which limit."""

    ok: bool
    field: str = ""
    value: Any = None
    limit: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return "yes" if self.ok else f"no: {self.field} is {self.value}, the kernel takes {self.limit}"


YES = Support(True)


def no(field: str, value: Any, limit: str) -> Support:
    """A refusal: ``field`` has ``value``, the kernel takes only ``limit``."""
    return Support(False, field, value, limit)


@dataclass(frozen=True)
class Kernel:
    """One implementation for one target (``cpu``, later ``neuron``)."""

    name: str
    target: str
    run: Callable[..., Any]
    supports: Callable[..., Support]


# Told of a call: the operation's name, its arguments by name (defaults included), what it returned.
Observer = Callable[[str, Mapping[str, Any], Any], None]


@dataclass
class _Dispatch:
    """The process-wide choice: which target's kernels, and how strict."""

    target: str = "cpu"
    mode: str | None = None
    observers: tuple[Observer, ...] = ()
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def current_mode(self) -> str:
        if self.mode is None:
            self.mode = envs.VLLM_NEURON_KERNELS
        return self.mode


_dispatch = _Dispatch()
OPERATIONS: dict[str, Operation[..., Any]] = {}


class Operation(Generic[P, R]):
    """A callable with a reference, kernels and counters; made by :func:`operation`."""

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.name = reference.__name__
        self.signature = inspect.signature(reference)
        self.kernels: list[Kernel] = []
        update_wrapper(self, reference)

    def kernel(self, name: str, *, target: str, supports: Callable[..., Support]) -> Callable[[Callable[P, R]], Any]:
        """Decorator: register an implementation. It and ``supports`` must name the reference's parameters."""

        def add(run: Callable[P, R]) -> Callable[P, R]:
            for function in (run, supports):
                if list(inspect.signature(function).parameters) != list(self.signature.parameters):
                    raise OperationError(
                        f"{self.name}.{name}.{function.__name__}",
                        list(inspect.signature(function).parameters),
                        f"the parameters of the reference: {list(self.signature.parameters)}",
                    )
            self.kernels.append(Kernel(name, target, run, supports))
            return run

        return add

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Support]:
        """What each kernel of the current target answers to this call, by kernel name."""
        return {k.name: k.supports(*args, **kwargs) for k in self.kernels if k.target == _dispatch.target}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not _dispatch.observers:
            return self._run(*args, **kwargs)
        result = self._run(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for observer in _dispatch.observers:
            observer(self.name, bound.arguments, result)
        return result

    def _run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        mode = _dispatch.current_mode()
        if mode == "off":
            return self.reference(*args, **kwargs)
        count = not torch.compiler.is_compiling()
        for kernel in self.kernels:
            if kernel.target != _dispatch.target:
                continue
            answer = kernel.supports(*args, **kwargs)
            if answer.ok:
                if count:
                    _dispatch.calls[self.name, kernel.name] += 1
                return kernel.run(*args, **kwargs)
            if mode == "require":
                raise OperationError(
                    f"{self.name}.{answer.field}",
                    answer.value,
                    f"{answer.limit} (kernel {kernel.name})",
                    "Set VLLM_NEURON_KERNELS=auto to run the reference here.",
                )
            if count:
                self._refused(kernel, answer)
        if count:
            _dispatch.calls[self.name, "reference"] += 1
        return self.reference(*args, **kwargs)

    def _refused(self, kernel: Kernel, answer: Support) -> None:
        key = (self.name, kernel.name, str(answer))
        if key not in _dispatch.refusals:
            logger.info("%s: kernel %s not used, %s", *key)
        _dispatch.refusals[key] += 1


def operation(reference: Callable[P, R]) -> Operation[P, R]:
    """Decorator: make the function the reference of a new operation of its name."""
    made = Operation(reference)
    OPERATIONS[made.name] = made
    return made


def calls() -> dict[tuple[str, str], int]:
    """How often each (operation, kernel) ran in this process; the kernel ``reference`` is plain torch."""
    return dict(_dispatch.calls)


def refusals() -> dict[tuple[str, str, str], int]:
    """How often each (operation, kernel, reason) was refused in this process."""
    return dict(_dispatch.refusals)


def get(name: str) -> Operation[..., Any]:
    """The operation of that name.

    Raises:
        OperationError: no such operation; the nearest name is suggested.
    """
    if name not in OPERATIONS:
        raise OperationError("operation", name, "a name in vllm_neuron.functional", nearest(name, OPERATIONS))
    return OPERATIONS[name]


def set_target(target: str) -> None:
    """Make ``target``'s kernels the ones to try; the runtime's adapter calls this once."""
    _dispatch.target = target


@contextmanager
def use_kernels(mode: str) -> Iterator[None]:
    """Override ``VLLM_NEURON_KERNELS`` inside a ``with`` block: ``auto``, ``off`` or ``require``."""
    before = _dispatch.mode
    _dispatch.mode = mode
    try:
        yield
    finally:
        _dispatch.mode = before


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of every call of an operation inside a ``with`` block, on whatever thread, after the call."""
    before = _dispatch.observers
    _dispatch.observers = (*before, observer)
    try:
        yield
    finally:
        _dispatch.observers = before
