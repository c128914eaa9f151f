"""One call of a kernel on the host: tensors to arrays and back, what was written, and whose fault an error is."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vllm_neuron.errors import KernelError, NeuronError
from vllm_neuron.nki import backend
from vllm_neuron.nki.api import nl
from vllm_neuron.nki.convert import NAMES, Array, to_numpy, to_torch

if TYPE_CHECKING:
    from vllm_neuron.nki.wrap import WrappedKernel

# Told of a call before it runs or is traced: the kernel's name, the grid, its arguments by name.
Watcher = Callable[[str, int, Mapping[str, Any]], None]
watchers: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of every call of a wrapped kernel inside a ``with`` block, but for those in a compiled graph."""
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)


class _Body:
    """Whatever a kernel's body raises, of whichever class, leaves as the error that names its own line."""

    def __init__(self, wrapped: WrappedKernel) -> None:
        self.wrapped = wrapped

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, KernelError):
            if "read-only" in str(error.value):
                raise _undeclared(self.wrapped, error.where) from error
        elif isinstance(error, Exception) and not isinstance(error, NeuronError):
            raise _failure(self.wrapped, error) from error


def run(wrapped: WrappedKernel, grid: int, bound: Mapping[str, Any]) -> Any:
    """Run a checked call; see :func:`vllm_neuron.nki.wrap.wrap_nki` for what comes back.

    Raises:
        KernelError: the kernel fails, returns nothing, writes an argument that is not declared, or returns something
            else than ``outputs`` says.
    """
    if backend.host_route() is backend.Route.SIMULATOR:
        _comes_back(wrapped, bound)
    arrays: dict[str, Any] = {}
    for name, value in bound.items():
        arrays[name] = _argument(wrapped, name, value)
    with _Body(wrapped):
        found = backend.run_on_host(wrapped.kernel, grid, arrays)
    return _results(wrapped, found, arrays, bound)


def _comes_back(wrapped: WrappedKernel, bound: Mapping[str, Any]) -> None:
    """Each written argument is among the results: a simulator that works on copies would lose it without a word."""
    promised = [] if wrapped.outputs is None else wrapped.promised(bound)
    for name in wrapped.mutates:
        if isinstance(bound[name], Tensor) and name not in promised:
            said = f"nothing of {name}, which the kernel writes"
            action = "Return it from the kernel, and name it in outputs: the simulator may work on copies."
            raise wrapped.error("outputs", said, f"{name!r} among the results", action)


def _argument(wrapped: WrappedKernel, name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        array = to_numpy(value)
        if name not in wrapped.mutates:
            array.flags.writeable = False
        return array
    return element_type(wrapped, name, value) if isinstance(value, torch.dtype) else value


def element_type(wrapped: WrappedKernel, name: str, value: torch.dtype) -> Any:
    """torch's element type as that of ``nki.language``.

    Raises:
        KernelError: a type that no kernel takes.
    """
    if value not in NAMES:
        wrapped.refuse(name, str(value), f"one of {', '.join(NAMES.values())}")
    return getattr(nl, NAMES[value])


def _results(wrapped: WrappedKernel, found: Any, arrays: Mapping[str, Any], bound: Mapping[str, Any]) -> Any:
    """Tensors of what came back; an argument that the kernel wrote and returned is the caller's tensor."""
    several = isinstance(found, tuple | list)
    items = [] if found is None else list(found) if several else [found]
    if not items and not wrapped.mutates:
        raise wrapped.error("return", "nothing", "the tensors that it makes, allocated in nl.shared_hbm")
    promised = None if wrapped.outputs is None else wrapped.promised(bound)
    if promised is not None and len(items) != len(promised):
        raise wrapped.error("return", f"{len(items)} tensors", f"{len(promised)}, as outputs says")
    results = []
    for number, item in enumerate(items):
        said = None if promised is None else promised[number]
        made = _result(wrapped, number, item, said, arrays, bound)
        if isinstance(said, tuple) and (tuple(made.shape), made.dtype) != said:
            value = f"{tuple(made.shape)} {made.dtype}"
            raise wrapped.error(f"return[{number}]", value, f"{said[0]} {said[1]}, as outputs says")
        results.append(made)
    if not results:
        return None
    return tuple(results) if several and len(results) > 1 else results[0]


def _result(
    wrapped: WrappedKernel,
    number: int,
    item: Any,
    said: Any,
    arrays: Mapping[str, Any],
    bound: Mapping[str, Any],
) -> Tensor:
    place = f"return[{number}]"
    if not hasattr(item, "__array__"):
        raise wrapped.error(place, type(item).__name__, "a tensor in nl.shared_hbm")
    array: Array = np.asarray(item)
    owner = _owner(array, arrays)
    if owner is not None and owner not in wrapped.mutates:
        raise wrapped.error(place, f"its argument {owner}", "a tensor of its own", f"Declare mutates=({owner!r},).")
    returned = said if isinstance(said, str) else owner
    if returned is not None and array.shape != arrays[returned].shape:
        whole = f"{returned} whole, of shape {arrays[returned].shape}"
        raise wrapped.error(place, f"a view of {returned}, of shape {array.shape}", whole)
    if isinstance(said, str):
        if owner is None:
            # A simulator may work on copies of its arguments: what it returns for one is written back.
            np.copyto(arrays[said], array)
        elif owner != said:
            raise wrapped.error(place, f"its argument {owner}", f"its argument {said}, as outputs says")
        return bound[said]
    if owner is not None:
        return bound[owner]
    try:
        return to_torch(array)
    except (TypeError, ValueError) as error:
        raise wrapped.error(place, str(array.dtype), f"an element type of torch ({error})") from error


def _owner(array: Array, arrays: Mapping[str, Any]) -> str | None:
    """The argument whose memory a returned array is."""
    for name, given in arrays.items():
        if isinstance(given, np.ndarray) and (array is given or np.may_share_memory(array, given)):
            return name
    return None


def _failure(wrapped: WrappedKernel, error: BaseException) -> KernelError:
    """The kernel's own line that failed: the innermost frame in the kernel's file, else the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    home = wrapped.function.__code__.co_filename
    own = [frame for frame in frames if frame.filename == home] or list(frames)
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else wrapped.where
    line = (own[-1].line or "").strip() if own else ""
    if isinstance(error, ValueError) and "read-only" in str(error):
        return _undeclared(wrapped, place)
    said = f"{type(error).__name__}: {error}"
    return KernelError(wrapped.name, "body", said, f"no Python error, at `{line}`", place)


def _undeclared(wrapped: WrappedKernel, place: str) -> KernelError:
    file, _, number = place.rpartition(":")
    line = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    declared = f" or into {', '.join(wrapped.mutates)}" if wrapped.mutates else ""
    return KernelError(
        wrapped.name,
        "write into an argument",
        line,
        f"writes into tensors of its own{declared} only",
        place,
        "Name the argument in wrap_nki(kernel, mutates=...), or write into a tensor of the kernel's own.",
    )
