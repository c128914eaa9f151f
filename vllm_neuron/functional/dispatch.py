"""The process-wide part of dispatch: which kernels are tried, how strictly, and what was chosen and refused.

========  ==========================================================================================================
mode      kernels that are tried, in order
========  ==========================================================================================================
auto      those of the current target: torch's own ones in CPU mode, NKI kernels on a Neuron device
simulate  NKI kernels, in the simulator or on the stand-in; where all refuse, those of the current target
require   NKI kernels; where all refuse it is an error
off       none
========  ==========================================================================================================

After them comes the reference, except in ``require``.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, OperationError, nearest
from vllm_neuron.nki.graphs import constant

logger = logging.getLogger(__name__)

CPU, NKI = TARGETS = "cpu", "nki"
MODES = ("auto", "off", "simulate", "require")
REFERENCE, COMPILER = "reference", "compiler"
ON_NKI = "vllm_neuron.functional.on_nki"

# Told of a call: the operation's name, its arguments by name (defaults included), what it returned.
Observer = Callable[[str, Mapping[str, Any], Any], None]
Refusal = tuple[str, str]


@dataclass
class _State:
    """What this process chose and counted."""

    target: str = CPU
    mode: str | None = None
    observers: tuple[Observer, ...] = ()
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str, str]] = field(default_factory=Counter)


state = _State()
_changing = threading.Lock()


def targets() -> tuple[str, ...]:
    """The targets whose kernels are tried now, in order."""
    if state.mode is None:
        _set_mode(envs.VLLM_NEURON_KERNELS)
    if state.mode == "auto":
        return (state.target,)
    if state.mode == "require":
        return (NKI,)
    if state.mode == "simulate":
        return (NKI,) if state.target == NKI else (NKI, state.target)
    return ()


def tries_nki() -> bool:
    """NKI kernels are among those that are tried now, so weights should lie as they take them."""
    return NKI in targets()


def strict() -> bool:
    """A call that no kernel takes is an error."""
    return state.mode == "require"


def _set_mode(mode: str | None) -> None:
    if mode is not None and mode not in MODES:
        raise ConfigError("kernels", mode, "one of " + ", ".join(MODES), nearest(mode, MODES))
    state.mode = mode
    _load_kernels()


def _load_kernels() -> None:
    """Register the NKI kernels when the mode or the target asks for them: they need NumPy types that others do not."""
    if state.mode in ("simulate", "require") or (state.mode != "off" and state.target == NKI):
        importlib.import_module(ON_NKI)


def set_target(target: str) -> None:
    """Make ``target``'s kernels (``cpu``, ``nki``) the ones to try; the runtime's adapter calls this once.

    Raises:
        ConfigError: another target, or ``VLLM_NEURON_KERNELS`` does not parse.
    """
    if target not in TARGETS:
        raise ConfigError("kernel target", target, f"{CPU} or {NKI}")
    state.target = target
    if state.mode is None:
        _set_mode(envs.VLLM_NEURON_KERNELS)
    _load_kernels()


@contextmanager
def use_kernels(mode: str) -> Iterator[None]:
    """Override ``VLLM_NEURON_KERNELS`` inside a ``with`` block: ``auto``, ``off``, ``simulate`` or ``require``.

    Raises:
        ConfigError: another mode.
    """
    before = state.mode
    _set_mode(mode)
    try:
        yield
    finally:
        state.mode = before


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of every call of an operation inside a ``with`` block, on whatever thread, after the call."""
    with _changing:
        state.observers = (*state.observers, observer)
    try:
        yield
    finally:
        with _changing:
            state.observers = tuple(each for each in state.observers if each is not observer)


@constant
def note(operation: str, choice: str, refused: tuple[Refusal, ...]) -> None:
    """Count a choice and the refusals before it; log each distinct refusal once.

    Inside ``torch.compile`` this runs once, while the call is traced, since the graph holds the choice from then on.
    """
    state.calls[operation, choice] += 1
    for kernel, reason in refused:
        key = (operation, kernel, reason)
        if key not in state.refusals:
            logger.info("%s: kernel %s not used, %s", *key)
        state.refusals[key] += 1


@constant
def refuse(field: str, value: Any, expected: str, action: str) -> NoReturn:
    """Raise the error of a call that no kernel takes; also while ``torch.compile`` traces."""
    raise OperationError(field, value, expected, action)


def calls() -> dict[tuple[str, str], int]:
    """How often each (operation, kernel) ran in this process.

    The kernel ``reference`` is plain torch, and ``compiler`` is plain torch too, on purpose (see
    :func:`vllm_neuron.functional.operation.operation`). A compiled graph counts once, when it is traced.
    """
    return dict(state.calls)


def refusals() -> dict[tuple[str, str, str], int]:
    """How often each (operation, kernel, reason) was refused in this process; counted like :func:`calls`."""
    return dict(state.refusals)
