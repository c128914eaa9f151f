"""What an operation is: a reference, kernels, and why one does not apply.

An operation is its ``reference`` in plain torch, which is the specification and takes every argument, plus any number
of kernels. A kernel has the reference's signature and a ``supports`` rule that answers yes or why not. A call takes the
first kernel that says yes, in the order of :mod:`vllm_neuron.functional.dispatch`; each refusal is counted, and logged
once for each distinct reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload

from vllm_neuron.errors import OperationError, nearest
from vllm_neuron.functional import dispatch

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


def _always() -> Support:
    return YES


@dataclass(frozen=True)
class Kernel:
    """One implementation for one target.

    Attributes:
        name: e.g. ``nki.rms_norm``; the part before the dot is where it comes from.
        target: ``cpu`` or ``nki``.
        run: with the reference's signature.
        supports: whether it takes a call.
        installed: whether it is there at all; one that is not is passed over without a refusal.
    """

    name: str
    target: str
    run: Callable[..., Any]
    supports: Callable[..., Support]
    installed: Callable[[], Support] = _always


OPERATIONS: dict[str, Operation[..., Any]] = {}


class Operation(Generic[P, R]):
    """A callable with a reference, kernels and counters; made by :func:`operation`.

    Attributes:
        reference: the specification.
        compiler: why it is left to the framework's compiler on a device; None when a kernel is to do it.
        kernels: in the order in which they are tried.
    """

    def __init__(self, reference: Callable[P, R], compiler: str | None = None) -> None:
        self.reference = reference
        self.compiler = compiler
        self.name = reference.__name__
        self.signature = inspect.signature(reference)
        self.kernels: list[Kernel] = []
        update_wrapper(self, reference)

    def kernel(
        self,
        name: str,
        *,
        target: str,
        supports: Callable[..., Support],
        installed: Callable[[], Support] = _always,
        first: bool = False,
    ) -> Callable[[Callable[P, R]], Any]:
        """Decorator: register an implementation. It and ``supports`` must name the reference's parameters.

        Args:
            name, target, supports, installed: see :class:`Kernel`.
            first: try it before those that are registered already.

        Raises:
            OperationError: another target, which would never be tried; a name that the operation has already; other
                parameters than the reference's.
        """
        if target not in dispatch.TARGETS:
            raise OperationError(
                f"{self.name}.{name}.target",
                target,
                f"one of {', '.join(dispatch.TARGETS)}",
                nearest(target, dispatch.TARGETS),
            )
        if any(kernel.name == name for kernel in self.kernels):
            raise OperationError(f"{self.name}.kernel", name, "a name that no other kernel of the operation has")

        def add(run: Callable[P, R]) -> Callable[P, R]:
            for function in (run, supports):
                if list(inspect.signature(function).parameters) != list(self.signature.parameters):
                    raise OperationError(
                        f"{self.name}.{name}.{function.__name__}",
                        list(inspect.signature(function).parameters),
                        f"the parameters of the reference: {list(self.signature.parameters)}",
                    )
            made = Kernel(name, target, run, supports, installed)
            self.kernels.insert(0 if first else len(self.kernels), made)
            return run

        return add

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Support]:
        """What each kernel that would be tried now answers to this call, by kernel name."""
        return {
            kernel.name: kernel.installed() and kernel.supports(*args, **kwargs)
            for target in dispatch.targets()
            for kernel in self.kernels
            if kernel.target == target
        }

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not dispatch.state.observers:
            return self._run(*args, **kwargs)
        result = self._run(*args, **kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for observer in dispatch.state.observers:
            observer(self.name, bound.arguments, result)
        return result

    def _run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        refused: tuple[dispatch.Refusal, ...] = ()
        answers: list[tuple[Kernel, Support]] = []
        for target in dispatch.targets():
            for kernel in self.kernels:
                if kernel.target != target or not kernel.installed().ok:
                    continue
                answer = kernel.supports(*args, **kwargs)
                if answer.ok:
                    dispatch.note(self.name, kernel.name, refused)
                    return kernel.run(*args, **kwargs)
                refused = (*refused, (kernel.name, str(answer)))
                answers.append((kernel, answer))
        if dispatch.strict() and self.compiler is None:
            self._refuse(answers)
        dispatch.note(self.name, self._plain(), refused)
        return self.reference(*args, **kwargs)

    def _plain(self) -> str:
        """What plain torch counts as: NKI kernels are meant to run and this operation has none on purpose, or not."""
        meant = self.compiler is not None and dispatch.tries_nki()
        return dispatch.COMPILER if meant else dispatch.REFERENCE

    def _refuse(self, answers: list[tuple[Kernel, Support]]) -> NoReturn:
        action = "Set VLLM_NEURON_KERNELS=simulate or auto to run the reference here."
        if not answers:
            dispatch.refuse(self.name, "no kernel", "an NKI kernel for this operation", action)
        kernel, answer = answers[-1]
        others = "".join([f" {other.name}: {said}." for other, said in answers[:-1]])
        plain = answer.value is None or isinstance(answer.value, bool | int | float | str)
        dispatch.refuse(
            f"{self.name}.{answer.field}",
            answer.value if plain else str(answer.value),
            f"{answer.limit} (kernel {kernel.name})",
            f"{action}{others}",
        )


@overload
def operation(reference: Callable[P, R]) -> Operation[P, R]: ...
@overload
def operation(*, compiler: str) -> Callable[[Callable[P, R]], Operation[P, R]]: ...
def operation(reference: Callable[P, R] | None = None, *, compiler: str | None = None) -> Any:
    """Decorator: make the function the reference of a new operation of its name.

    Args:
        reference: the function, when used without arguments.
        compiler: why no kernel of ours is meant to do it, for an operation that the framework's compiler does well
            enough: it is then no refusal that none does.
    """

    def make(function: Callable[P, R]) -> Operation[P, R]:
        made = Operation(function, compiler)
        OPERATIONS[made.name] = made
        return made

    return make if reference is None else make(reference)


def get(name: str) -> Operation[..., Any]:
    """The operation of that name.

    Raises:
        OperationError: no such operation; the nearest name is suggested.
    """
    if name not in OPERATIONS:
        raise OperationError("operation", name, "a name in vllm_neuron.functional", nearest(name, OPERATIONS))
    return OPERATIONS[name]
