"""A kernel as a function of torch tensors: checked, eager or inside ``torch.compile``, on a device or on the host.

``wrapped = wrap_nki(kernel, outputs=..., mutates=...)`` and then ``wrapped[grid](*args, **kwargs)``.

Tensors must be contiguous: a kernel's layout is part of its interface, and a hidden copy would cost more than many a
kernel. Arguments that the kernel writes have to be declared; the others are read-only while it runs on the host.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_neuron.errors import KernelError
from vllm_neuron.nki import backend, execute, operator, refuse
from vllm_neuron.nki.api import nki
from vllm_neuron.nki.bind import Parameters, check_outputs, function_of
from vllm_neuron.nki.convert import NAMES, names

Outputs = Callable[..., Any]
# Shape and element type of a new tensor, or the name of a written argument.
Promise = tuple[tuple[int, ...], torch.dtype] | str


class WrappedKernel:
    """What :func:`wrap_nki` makes.

    Attributes:
        kernel: what ``nki.jit`` made.
        name: of the kernel's function.
        function: the Python function.
        where: ``file:line`` of its definition.
        parameters: its signature.
        outputs, mutates: as given.
        key: the kernel's name in a graph.
    """

    def __init__(self, kernel: Any, outputs: Outputs | None, mutates: Sequence[str]) -> None:
        if isinstance(kernel, WrappedKernel):
            raise TypeError("wrap_nki: got what it made already, expected a kernel")
        function = function_of(kernel)
        self.kernel = nki.jit(kernel) if inspect.isfunction(kernel) else kernel
        self.name, self.function = function.__name__, function
        self.where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        self.parameters = Parameters(function)
        if isinstance(mutates, str):
            raise TypeError(f"kernel {self.name}: mutates is {mutates!r}, expected a tuple: mutates=({mutates!r},)")
        self.outputs, self.mutates = outputs, tuple(mutates)
        for name in self.mutates:
            if name not in self.parameters.names:
                refuse.unknown(self.name, name, self.parameters.names, "mutates names an argument that it has not,")
        if outputs is not None:
            check_outputs(self.name, outputs, self.parameters.names)
        self.key = operator.register(self)
        # Looked up now where it can be, since torch.compile can't import while it traces.
        self._device: Any = backend.device_caller(self.kernel) if backend.framework_loaded() else None

    def __getitem__(self, grid: int) -> Launch:
        """The kernel on a logical core of ``grid`` NeuronCores.

        Raises:
            KernelError: a grid that is neither 1 nor 2.
        """
        if isinstance(grid, bool) or not isinstance(grid, int) or grid not in backend.GRIDS:
            self.refuse("grid", grid, "1 or 2, the NeuronCores of a logical core")
        return Launch(self, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``self[1](...)``."""
        return self.launch(1, args, kwargs)

    def launch(self, grid: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Bind, check, and run or trace.

        Raises:
            TypeError: an argument that the kernel does not have, or a missing one.
            KernelError: see :meth:`check`; and what fails inside the kernel, with its own line.
        """
        bound = self.parameters.bind(args, kwargs)
        for value in bound.values():
            if isinstance(value, Tensor) and value.device.type in backend.DEVICE_TYPES:
                self.check(bound)
                return self._on_device(grid, bound)
        compiling = torch.compiler.is_compiling()
        if not compiling:
            for watcher in execute.watchers:
                watcher(self.name, grid, bound)
        if compiling or _is_traced(bound):
            return operator.call(self, grid, bound)
        self.check(bound)
        self.check_memory(bound)
        return execute.run(self, grid, bound)

    def _on_device(self, grid: int, bound: dict[str, Any]) -> Any:
        """Through the framework's own wrapper, which also traces."""
        if not torch.compiler.is_compiling() and not _is_traced(bound):
            self.check_memory(bound)
        if self._device is None:
            self._device = backend.device_caller(self.kernel)
        given = {}
        for name, value in bound.items():
            given[name] = execute.element_type(self, name, value) if isinstance(value, torch.dtype) else value
        return self._device[grid](**given)

    def check(self, bound: Mapping[str, Any]) -> None:
        """Devices, element types and layout of the tensors.

        Raises:
            KernelError: tensors on different devices, or on one where no kernel runs; an element type that no kernel
                takes; a tensor that is not contiguous; an array of NumPy; something else than a tensor for an argument
                that is written.
        """
        device: torch.device | None = None
        for name, value in bound.items():
            if not isinstance(value, Tensor):
                if name in self.mutates and value is not None:
                    self.refuse(name, type(value).__name__, "a tensor, which the kernel writes")
                if isinstance(value, np.ndarray):
                    self.refuse(name, "an array of NumPy", "a torch tensor", f"Pass torch.from_numpy({name}).")
                continue
            if device is None and backend.route(value.device.type) is None:
                self.refuse(name, f"a tensor on {value.device}", "a tensor on a Neuron device or on the CPU")
            if device is not None and value.device != device:
                self.refuse(name, f"a tensor on {value.device}", f"all tensors on one device, here {device}")
            device = value.device
            self.check_type(name, value)
            if not value.is_contiguous():
                self._refuse_strided(name, value)

    def check_type(self, name: str, value: Tensor) -> None:
        """The element type of a tensor.

        Raises:
            KernelError: one that no kernel takes.
        """
        if value.dtype not in NAMES:
            self.refuse(name, str(value.dtype), f"one of {names()}", _cast_hint(name, value.dtype))

    def check_memory(self, bound: Mapping[str, Any]) -> None:
        """What only tensors with memory can tell, so not while a graph is traced.

        A written tensor shares no memory with another: the order of a kernel's reads and writes is the compiler's.

        Raises:
            KernelError: one that does; a tensor that is negated on reading.
        """
        tensors = {name: value for name, value in bound.items() if isinstance(value, Tensor)}
        for name, value in tensors.items():
            if value.is_neg():
                self.refuse(name, "a lazily negated tensor", "its elements in memory", f"Pass {name}.resolve_neg().")
            for other in self.mutates:
                if other in tensors and other != name and _overlap(tensors[other], value):
                    self.refuse(other, f"memory that {name} has too", "a tensor of its own, which the kernel writes")

    def _refuse_strided(self, name: str, value: Tensor) -> None:
        action = f"Pass {name}.contiguous() where a copy is meant."
        if name in self.mutates:
            action = "What the kernel writes into a copy would be lost: pass a contiguous tensor."
        self.refuse(name, f"shape {tuple(value.shape)}, stride {value.stride()}", "a contiguous tensor", action)

    def refuse(self, argument: str, value: Any, limit: str, action: str = "") -> None:
        """Raise the error of an argument, with the kernel's place in the source."""
        refuse.call(self.name, argument, value, limit, self.where, action)

    def error(self, argument: str, value: Any, limit: str, action: str = "") -> KernelError:
        """The same error, not raised."""
        return KernelError(self.name, argument, value, limit, self.where, action)

    def promised(self, bound: Mapping[str, Any]) -> list[Promise]:
        """What ``outputs`` says of a call: shape and dtype of each result, or the name of a written argument.

        Raises:
            KernelError: there is no ``outputs``, or it names an argument that is not declared as written.
        """
        if self.outputs is None:
            self.refuse(
                "outputs",
                None,
                "a function of the kernel's arguments that gives shape and dtype of each result",
                "Pass wrap_nki(kernel, outputs=...): torch.compile and dry runs do not run the kernel.",
            )
            raise AssertionError
        said = self.outputs(**bound)
        made: list[Promise] = []
        for one in said if isinstance(said, list) else [said]:
            if isinstance(one, str):
                if one not in self.mutates:
                    self.refuse("outputs", one, f"a name in mutates={self.mutates}")
                made.append(one)
            elif isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], torch.dtype):
                made.append((tuple(one[0]), one[1]))
            else:
                self.refuse("outputs", type(one).__name__, "(shape, dtype), or a list of such pairs")
        return made


class Launch:
    """A kernel with its grid."""

    __slots__ = ("grid", "wrapped")

    def __init__(self, wrapped: WrappedKernel, grid: int) -> None:
        self.wrapped, self.grid = wrapped, grid

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`WrappedKernel.launch`."""
        return self.wrapped.launch(self.grid, args, kwargs)


def wrap_nki(kernel: Any, *, outputs: Outputs | None = None, mutates: Sequence[str] = ()) -> WrappedKernel:
    """A kernel as a function of torch tensors: ``wrapped[grid](*args, **kwargs)``.

    Args:
        kernel: a function, or what ``nki.jit`` made of one.
        outputs: called with the kernel's arguments by name; gives ``(shape, dtype)`` of the result, or a list of such
            pairs for several. A written argument that the kernel returns is given by its name. Needed under
            ``torch.compile`` and in dry runs, which do not run the kernel, and checked when it does run.
        mutates: names of the arguments that the kernel writes in place.

    Returns:
        The wrapper. A call gives what the kernel returns: a tensor, or a tuple of them; a returned argument is the
        caller's own tensor.

    Raises:
        TypeError: no function in ``kernel``, one with ``*args``, a name in ``mutates`` that it does not have, or
            ``outputs`` that does not take the kernel's arguments.
    """
    return WrappedKernel(kernel, outputs, mutates)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Two contiguous tensors on one device have bytes in common."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def _is_traced(bound: Mapping[str, Any]) -> bool:
    """A fake, functional or meta tensor is among the arguments: nothing can run on it."""
    for value in bound.values():
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            if value.device.type == "meta":
                return True
        elif isinstance(value, Tensor):
            return True
    return False


def _cast_hint(name: str, dtype: torch.dtype) -> str:
    wide = {torch.int64: "int32", torch.float64: "float32", torch.uint64: "uint32"}.get(dtype)
    return f"Pass {name}.to(torch.{wide}) where the values fit." if wide else ""
