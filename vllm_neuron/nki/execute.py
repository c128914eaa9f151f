"""One call of a kernel on the host: tensors to arrays and back, what was written, and whose fault an error is."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vllm_neuron.errors import KernelError
from vllm_neuron.nki import backend
from vllm_neuron.nki.api import nl
from vllm_neuron.nki.convert import NAMES, Array, to_numpy, to_torch

if TYPE_CHECKING:
    from vllm_neuron.nki.wrap import WrappedKernel

# What the body of a kernel may raise.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def run(wrapped: WrappedKernel, grid: int, bound: Mapping[str, Any]) -> Any:
    """Run a checked call; see :func:`vllm_neuron.nki.wrap.wrap_nki` for what comes back.

    Raises:
        KernelError: the kernel fails, returns nothing, writes an argument that is not declared, or returns something
            else than ``outputs`` says.
    """
    arrays: dict[str, Any] = {}
    for name, value in bound.items():
        arrays[name] = _argument(wrapped, name, value)
    try:
        found = backend.run_on_host(wrapped.kernel, grid, arrays)
    except KernelError:
        raise
    except FAILURES as error:
        raise _failure(wrapped, error) from error
    return _results(wrapped, found, arrays, bound)


def _argument(wrapped: WrappedKernel, name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        array = to_numpy(value)
        if name not in wrapped.mutates:
            array.flags.writeable = False
        return array
    if isinstance(value, torch.dtype):
        if value not in NAMES:
            raise wrapped.error(name, value, f"one of {', '.join(NAMES.values())}")
        return getattr(nl, NAMES[value])
    return value


def _results(wrapped: WrappedKernel, found: Any, arrays: Mapping[str, Any], bound: Mapping[str, Any]) -> Any:
    """Tensors of what came back; an argument that the kernel wrote and returned is the caller's tensor."""
    several = isinstance(found, tuple | list)
    items = [] if found is None else list(found) if several else [found]
    if not items and not wrapped.mutates:
        raise wrapped.error("return", "nothing", "the tensors that it makes, allocated in nl.shared_hbm")
    results = [_result(wrapped, number, item, arrays, bound) for number, item in enumerate(items)]
    if wrapped.outputs is not None:
        _check_promise(wrapped, results, bound)
    if not results:
        return None
    return tuple(results) if several and len(results) > 1 else results[0]


def _result(
    wrapped: WrappedKernel, number: int, item: Any, arrays: Mapping[str, Any], bound: Mapping[str, Any]
) -> Tensor:
    if not hasattr(item, "__array__"):
        raise wrapped.error(f"return[{number}]", type(item).__name__, "a tensor in nl.shared_hbm")
    array: Array = np.asarray(item)
    for name, given in arrays.items():
        if not isinstance(given, np.ndarray):
            continue
        if array is given or (array.size and given.size and np.shares_memory(array, given)):
            if name not in wrapped.mutates:
                raise wrapped.error(
                    f"return[{number}]", f"its argument {name}", "a tensor of its own", f"Declare mutates=({name!r},)."
                )
            return bound[name]
    name = _returned_copy(wrapped, number, bound)
    if name is not None:
        # A simulator may work on copies of its arguments: what it returns for one is written back.
        np.copyto(arrays[name], array)
        return bound[name]
    try:
        return to_torch(array)
    except (TypeError, ValueError) as error:
        raise wrapped.error(f"return[{number}]", str(array.dtype), f"an element type of torch ({error})") from error


def _returned_copy(wrapped: WrappedKernel, number: int, bound: Mapping[str, Any]) -> str | None:
    if wrapped.outputs is None or not wrapped.mutates:
        return None
    promised = wrapped.promised(bound)
    said = promised[number] if number < len(promised) else None
    return said if isinstance(said, str) else None


def _check_promise(wrapped: WrappedKernel, results: list[Tensor], bound: Mapping[str, Any]) -> None:
    promised = wrapped.promised(bound)
    if len(results) != len(promised):
        raise wrapped.error("return", f"{len(results)} tensors", f"{len(promised)}, as outputs says")
    for number, (made, said) in enumerate(zip(results, promised, strict=True)):
        if isinstance(said, str):
            if made is not bound[said]:
                raise wrapped.error(f"return[{number}]", "a new tensor", f"its argument {said}, as outputs says")
        elif (tuple(made.shape), made.dtype) != said:
            raise wrapped.error(
                f"return[{number}]", f"{tuple(made.shape)} {made.dtype}", f"{said[0]} {said[1]}, as outputs says"
            )


def _failure(wrapped: WrappedKernel, error: BaseException) -> KernelError:
    """The kernel's own line that failed: the innermost frame in the kernel's file, else the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    home = wrapped.function.__code__.co_filename
    own = [frame for frame in frames if frame.filename == home] or list(frames)
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else wrapped.where()
    line = (own[-1].line or "").strip() if own else ""
    if isinstance(error, ValueError) and "read-only" in str(error):
        return KernelError(wrapped.name, "write", line, _declared(wrapped), place, _DECLARE)
    said = f"{type(error).__name__}: {error}"
    return KernelError(wrapped.name, "body", said, f"no Python error, at `{line}`", place)


_DECLARE = "Name the argument in wrap_nki(kernel, mutates=...), or write into a tensor of the kernel's own."


def _declared(wrapped: WrappedKernel) -> str:
    names = ", ".join(wrapped.mutates)
    return f"writes into its own tensors{' and ' + names if names else ''} only"
