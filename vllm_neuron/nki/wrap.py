"""A kernel as a function of torch tensors: checked, eager or inside ``torch.compile``, on a device or on the host.

``wrapped = wrap_nki(kernel, outputs=..., mutates=...)`` and then ``wrapped[grid](*args, **kwargs)``.

Tensors must be contiguous: a kernel's layout is part of its interface, and a hidden copy would cost more than many a
kernel. Arguments that the kernel writes have to be declared; the others are read-only while it runs on the host.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.errors import KernelError, nearest
from vllm_neuron.nki import backend, execute
from vllm_neuron.nki.api import nki
from vllm_neuron.nki.bind import Parameters, function_of
from vllm_neuron.nki.convert import NAMES, names

Outputs = Callable[..., Any]
MOST_WRITTEN_OUTPUTS = 4
_wrapped: dict[str, WrappedKernel] = {}


class WrappedKernel:
    """What :func:`wrap_nki` makes.

    Attributes:
        kernel: what ``nki.jit`` made.
        name: of the kernel's function.
        parameters: its signature.
        outputs, mutates: as given.
        key: name of this kernel in a compiled graph: module, function, and a digest of the source, so that a graph
            from a cache never runs another kernel.
    """

    def __init__(self, kernel: Any, outputs: Outputs | None, mutates: Sequence[str]) -> None:
        function = function_of(kernel)
        self.kernel = nki.jit(kernel) if inspect.isfunction(kernel) else kernel
        self.name, self.function = function.__name__, function
        self.parameters = Parameters(function)
        self.outputs, self.mutates = outputs, tuple(mutates)
        for name in self.mutates:
            if name not in self.parameters.names:
                raise TypeError(
                    f"kernel {self.name}: mutates={name!r} is none of its arguments. "
                    f"{nearest(name, self.parameters.names)}"
                )
        self.key = _register(self)
        self._device: Any = None

    def __getitem__(self, grid: int) -> Launch:
        """The kernel on a logical core of ``grid`` NeuronCores.

        Raises:
            KernelError: a grid that is neither 1 nor 2.
        """
        if isinstance(grid, bool) or grid not in backend.GRIDS:
            raise KernelError(self.name, "grid", grid, "1 or 2, the NeuronCores of a logical core", self.where())
        return Launch(self, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``self[1](...)``."""
        return self.launch(1, args, kwargs)

    def where(self) -> str:
        """``file:line`` of the kernel's definition."""
        return f"{self.function.__code__.co_filename}:{self.function.__code__.co_firstlineno}"

    def launch(self, grid: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Bind, check, and run or trace.

        Raises:
            TypeError: an argument that the kernel does not have, or a missing one.
            KernelError: see :meth:`check`; and what fails inside the kernel, with its own line.
        """
        bound = self.parameters.bind(args, kwargs)
        devices = [value.device.type for value in bound.values() if isinstance(value, Tensor)]
        if devices and devices[0] in backend.DEVICE_TYPES:
            self.check(bound)
            return self.on_device(grid, bound)
        if torch.compiler.is_compiling() or _is_traced(bound):
            return as_operator(self, grid, bound)
        self.check(bound)
        return execute.run(self, grid, bound)

    def on_device(self, grid: int, bound: dict[str, Any]) -> Any:
        """Through the framework's own wrapper, which also traces."""
        if self._device is None:
            self._device = backend.device_caller(self.kernel)
        return self._device[grid](**bound)

    def check(self, bound: Mapping[str, Any]) -> None:
        """Devices, element types and layout of the tensors.

        Raises:
            KernelError: tensors on different devices, or on one where no kernel runs; an element type that no kernel
                takes; a tensor that is not contiguous; something else than a tensor for an argument that is written.
        """
        device: torch.device | None = None
        for name, value in bound.items():
            if not isinstance(value, Tensor):
                if name in self.mutates and value is not None:
                    raise self.error(name, type(value).__name__, "a tensor: the kernel writes it")
                continue
            if device is None and backend.route(value.device.type) is None:
                raise self.error(name, f"a tensor on {value.device}", "a tensor on a Neuron device or on the CPU")
            if device is not None and value.device != device:
                raise self.error(name, f"a tensor on {value.device}", f"all tensors on one device, here {device}")
            device = value.device
            if value.dtype not in NAMES:
                raise self.error(name, value.dtype, f"one of {names()}", _cast_hint(name, value.dtype))
            if not value.is_contiguous():
                raise self.error(
                    name,
                    f"shape {tuple(value.shape)}, stride {value.stride()}",
                    "a contiguous tensor",
                    "A copy of what the kernel writes would be lost: write into a contiguous tensor."
                    if name in self.mutates
                    else f"Pass {name}.contiguous() where a copy is meant.",
                )

    def error(self, argument: str, value: Any, limit: str, action: str = "") -> KernelError:
        """The error of an argument, with the kernel's place in the source."""
        return KernelError(self.name, argument, value, limit, self.where(), action)

    def promised(self, bound: Mapping[str, Any]) -> list[tuple[tuple[int, ...], torch.dtype] | str]:
        """What ``outputs`` says of a call: shape and dtype of each result, or the name of a written argument.

        Raises:
            KernelError: there is no ``outputs``, or it names an argument that is not declared as written.
        """
        if self.outputs is None:
            raise KernelError(
                self.name,
                "outputs",
                None,
                "a function of the kernel's arguments that gives shape and dtype of each result",
                self.where(),
                "Pass wrap_nki(kernel, outputs=...): torch.compile and dry runs do not run the kernel.",
            )
        said = self.outputs(**bound)
        several = isinstance(said, list)
        made: list[tuple[tuple[int, ...], torch.dtype] | str] = []
        for one in said if several else [said]:
            if isinstance(one, str):
                if one not in self.mutates:
                    raise self.error("outputs", one, f"a name in mutates={self.mutates}")
                made.append(one)
            else:
                made.append((tuple(one[0]), one[1]))
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
        The wrapper. A call gives what the kernel returns: a tensor, a tuple of them, or None when it only writes into
        arguments; a returned argument is the caller's own tensor.

    Raises:
        TypeError: no function in ``kernel``, one with ``*args``, or a name in ``mutates`` that it does not have.
    """
    return WrappedKernel(kernel, outputs, mutates)


def _register(wrapped: WrappedKernel) -> str:
    function = wrapped.function
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = function.__code__.co_code.hex()
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    base = f"{function.__module__}.{function.__qualname__}:{digest}"
    key, count = base, 1
    while key in _wrapped:
        count += 1
        key = f"{base}#{count}"
    _wrapped[key] = wrapped
    return key


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


# -- in a graph ---------------------------------------------------------------------------------------------------


def as_operator(wrapped: WrappedKernel, grid: int, bound: dict[str, Any]) -> Any:
    """The call as an operator of ``torch.library``, which a graph holds and nothing looks into."""
    promised = wrapped.promised(bound)
    read: list[Tensor] = []
    written: list[Tensor] = []
    rest = ""
    for name, value in bound.items():
        if isinstance(value, Tensor):
            (written if name in wrapped.mutates else read).append(value)
            rest += f"({name!r}, {'written' if name in wrapped.mutates else 'read'!r}, None),"
        else:
            rest += f"({name!r}, 'static', {_literal(wrapped, name, value)}),"
    fresh = [one for one in promised if not isinstance(one, str)]
    operator = operator_for(wrapped, bool(written), len(fresh))
    found = operator(wrapped.key, f"({rest})", grid, read, written)
    made = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
    results = [bound[one] if isinstance(one, str) else made.pop(0) for one in promised]
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def operator_for(wrapped: WrappedKernel, writes: bool, fresh: int) -> Any:
    """The operator for so many new tensors."""
    if not writes:
        return torch.ops.vllm_neuron.nki_call
    if fresh > MOST_WRITTEN_OUTPUTS:
        raise wrapped.error("outputs", fresh, f"at most {MOST_WRITTEN_OUTPUTS} new tensors beside written arguments")
    return getattr(torch.ops.vllm_neuron, f"nki_write_{fresh}")


def _literal(wrapped: WrappedKernel, name: str, value: Any) -> str:
    """A plain value as Python's own text of it; a dtype as the text of its name."""
    if isinstance(value, torch.dtype):
        return repr(str(value))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return "(" + "".join([_literal(wrapped, name, one) + "," for one in value]) + ")"
    raise wrapped.error(name, type(value).__name__, "a tensor, number, text, dtype, None, or a tuple of those")


def _unpack(key: str, text: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> tuple[WrappedKernel, dict]:
    sources = {"read": iter(read), "written": iter(written)}
    bound = {
        name: next(sources[kind]) if kind in sources else _value(value) for name, kind, value in ast.literal_eval(text)
    }
    return _wrapped[key], bound


def _value(value: Any) -> Any:
    return getattr(torch, value[6:]) if isinstance(value, str) and value.startswith("torch.") else value


def _call(key: str, text: str, grid: int, read: Sequence[Tensor], written: Sequence[Tensor]) -> list[Tensor]:
    """Run the call of an operator; its new tensors."""
    wrapped, bound = _unpack(key, text, read, written)
    wrapped.check(bound)
    found = execute.run(wrapped, grid, bound)
    results = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
    return [one for one in results if not any(one is given for given in written)]


def _fake(key: str, text: str, grid: int, read: Sequence[Tensor], written: Sequence[Tensor]) -> list[Tensor]:
    """New tensors of the promised shapes, without running anything."""
    wrapped, bound = _unpack(key, text, read, written)
    device = next((t.device for t in (*read, *written)), torch.device("cpu"))
    fresh = [one for one in wrapped.promised(bound) if not isinstance(one, str)]
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in fresh]


_ARGUMENTS = "str key, str arguments, int grid, Tensor[] read, Tensor{}[] written"


def _define(name: str, returns: str, mark: str, shape: Callable[[list[Tensor]], Any]) -> None:
    def run(*args: Any) -> Any:
        return shape(_call(*args))

    def fake(*args: Any) -> Any:
        return shape(_fake(*args))

    made = torch.library.custom_op(
        f"vllm_neuron::{name}",
        run,
        mutates_args=("written",) if mark else (),
        schema=f"({_ARGUMENTS.format(mark)}) -> {returns}",
    )
    made.register_fake(fake)


def _none(made: list[Tensor]) -> None:
    return None


def _one(made: list[Tensor]) -> Tensor:
    return made[0]


# An operator that writes can't return a list of tensors (torch 2.13), so there is one for each number of results.
_define("nki_call", "Tensor[]", "", list)
_define("nki_write_0", "()", "(a!)", _none)
_define("nki_write_1", "Tensor", "(a!)", _one)
for _count in range(2, MOST_WRITTEN_OUTPUTS + 1):
    _define(f"nki_write_{_count}", "(" + ", ".join(["Tensor"] * _count) + ")", "(a!)", tuple)
