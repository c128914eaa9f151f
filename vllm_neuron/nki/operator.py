"""A kernel call as an operator of ``torch.library``: opaque to ``torch.compile``, with shapes from ``outputs``.

A graph holds the kernel by a name that contains a digest of its source (its module and the helpers beside it), and its
plain arguments as text. So a graph from a cache on disk finds the very kernel that it was traced with, or none.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import marshal
import math
import operator
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vllm_neuron.nki import execute

if TYPE_CHECKING:
    from vllm_neuron.nki.wrap import WrappedKernel

# An operator that writes can't return a list of tensors (torch 2.13), so there is one for each number of results.
MOST_WRITTEN_OUTPUTS = 4
_ARGUMENTS = "str key, str arguments, int grid, Tensor[] read, Tensor{}[] written"
_wrapped: dict[str, WrappedKernel] = {}


def register(wrapped: WrappedKernel) -> str:
    """The kernel's name in graphs: module, function, digest of the source, and a number when that is taken."""
    function = wrapped.function
    digest = hashlib.sha256(_source(function).encode()).hexdigest()[:12]
    base = f"{function.__module__}.{function.__qualname__}:{digest}"
    key, count = base, 1
    while key in _wrapped:
        count += 1
        key = f"{base}#{count}"
    _wrapped[key] = wrapped
    return key


def _source(function: Any) -> str:
    """Source of the kernel's module and of those beside it that it takes functions from; without it, the code."""
    home = function.__module__ or ""
    package = home.rpartition(".")[0] + "."
    names, found = [home], dict[str, str]()
    while names:
        name = names.pop()
        if name in found:
            continue
        module = sys.modules.get(name)
        try:
            found[name] = inspect.getsource(module)  # type: ignore[arg-type]
        except (OSError, TypeError):
            return marshal.dumps(function.__code__).hex()
        owners = (getattr(value, "__module__", None) for value in vars(module).values())
        names += [owner for owner in owners if isinstance(owner, str) and owner.startswith(package)]
    return "".join(found[name] for name in sorted(found))


def call(wrapped: WrappedKernel, grid: int, bound: dict[str, Any]) -> Any:
    """The call as an operator; what comes back is as in an eager call.

    Raises:
        KernelError: no ``outputs``, too many results beside written arguments, or an argument that is no tensor and no
            plain value.
    """
    promised = wrapped.promised(bound)
    read: list[Tensor] = []
    written: list[Tensor] = []
    text = ""
    defaults = wrapped.parameters.defaults
    for name, value in bound.items():
        if isinstance(value, Tensor):
            way = "written" if name in wrapped.mutates else "read"
            (written if way == "written" else read).append(value)
            text += f"({name!r}, {way!r}, None),"
        elif name not in defaults or value is not defaults[name]:
            text += f"({name!r}, {_plain(wrapped, name, value)}),"
    fresh = [one for one in promised if not isinstance(one, str)]
    if written and len(fresh) > MOST_WRITTEN_OUTPUTS:
        wrapped.refuse("outputs", len(fresh), f"at most {MOST_WRITTEN_OUTPUTS} new tensors beside written arguments")
    name = f"nki_write_{len(fresh)}" if written else "nki_call"
    found = getattr(torch.ops.vllm_neuron, name)(wrapped.key, f"({text})", grid, read, written)
    made = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
    results = [bound[one] if isinstance(one, str) else made.pop(0) for one in promised]
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def _plain(wrapped: WrappedKernel, name: str, value: Any) -> str:
    """Kind and text of an argument that is no tensor."""
    if isinstance(value, torch.dtype):
        return f"'dtype', {str(value)[6:]!r}"
    if isinstance(value, Enum):
        kind = type(value)
        return f"'enum', ({kind.__module__!r}, {kind.__qualname__!r}, {value.name!r})"
    return f"'plain', {_literal(wrapped, name, value)}"


def _literal(wrapped: WrappedKernel, name: str, value: Any) -> str:
    """A plain value as Python's own text of it."""
    if value is None or isinstance(value, bool | str):
        return repr(value)
    if isinstance(value, int | float):
        return _number(wrapped, name, value)
    if isinstance(value, tuple | list):
        return "(" + "".join([_literal(wrapped, name, one) + "," for one in value]) + ")"
    wrapped.refuse(
        name, type(value).__name__, "a tensor, number, text, dtype, enum, None, or a tuple of those, in a graph"
    )
    raise AssertionError


def _number(wrapped: WrappedKernel, name: str, value: float) -> str:
    """A number as text that reads as the same one.

    By its ratio, or as a range's end: both make a constant of what ``torch.compile`` takes for a variable once it has
    seen a second value.
    """
    if value != value:
        wrapped.refuse(name, "nan", "a number, in a graph")
    if value == math.inf or value == -math.inf:
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, int):
        return repr(range(value).stop)
    above, below = value.as_integer_ratio()
    return repr(above / below if above else math.copysign(0.0, value))


def _value(kind: str, value: Any) -> Any:
    if kind == "dtype":
        return getattr(torch, value)
    if kind == "enum":
        module, name, member = value
        return operator.attrgetter(name)(importlib.import_module(module))[member]
    return value


def _unpack(
    key: str, text: str, read: Sequence[Tensor], written: Sequence[Tensor]
) -> tuple[WrappedKernel, dict[str, Any]]:
    tensors = {"read": iter(read), "written": iter(written)}
    wrapped = _wrapped[key]
    given = {
        name: next(tensors[kind]) if kind in tensors else _value(kind, value)
        for name, kind, value in ast.literal_eval(text)
    }
    return wrapped, wrapped.parameters.bind((), given)


def _run(key: str, text: str, grid: int, read: Sequence[Tensor], written: Sequence[Tensor]) -> list[Tensor]:
    """Run the kernel; its new tensors."""
    wrapped, bound = _unpack(key, text, read, written)
    wrapped.check(bound)
    wrapped.check_memory(bound)
    found = execute.run(wrapped, grid, bound)
    results = [] if found is None else [found] if isinstance(found, Tensor) else list(found)
    return [one for one in results if not any(one is given for given in written)]


def _shapes(key: str, text: str, grid: int, read: Sequence[Tensor], written: Sequence[Tensor]) -> list[Tensor]:
    """New tensors of the promised shapes, without running anything; element types are checked as in a run."""
    wrapped, bound = _unpack(key, text, read, written)
    for name, value in bound.items():
        if isinstance(value, Tensor):
            wrapped.check_type(name, value)
    device = next((t.device for t in (*read, *written)), torch.device("cpu"))
    fresh = [one for one in wrapped.promised(bound) if not isinstance(one, str)]
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in fresh]


def _define(name: str, returns: str, mark: str, shape: Callable[[list[Tensor]], Any]) -> None:
    def run(*args: Any) -> Any:
        return shape(_run(*args))

    def fake(*args: Any) -> Any:
        return shape(_shapes(*args))

    made = torch.library.custom_op(
        f"vllm_neuron::{name}",
        run,
        mutates_args=("written",) if mark else (),
        schema=f"({_ARGUMENTS.format(mark)}) -> {returns}",
    )
    made.register_fake(fake)


def _nothing(made: list[Tensor]) -> None:
    return None


def _single(made: list[Tensor]) -> Tensor:
    return made[0]


_define("nki_call", "Tensor[]", "", list)
_define("nki_write_0", "()", "(a!)", _nothing)
_define("nki_write_1", "Tensor", "(a!)", _single)
for _count in range(2, MOST_WRITTEN_OUTPUTS + 1):
    _define(f"nki_write_{_count}", "(" + ", ".join(["Tensor"] * _count) + ")", "(a!)", tuple)
