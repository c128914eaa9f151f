"""``nki.jit`` of the stand-in: runs a kernel function on NumPy arrays, as one program or as two threads."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from vllm_neuron.errors import KernelError, NeuronError
from vllm_neuron.nki.standin import counts
from vllm_neuron.nki.standin.core import STANDIN, Core, line_of, local
from vllm_neuron.nki.standin.dtypes import as_dtype
from vllm_neuron.nki.standin.memory import MemoryRegion, Storage
from vllm_neuron.nki.standin.objects import NKIObject
from vllm_neuron.nki.standin.rendezvous import Aborted, Launch
from vllm_neuron.nki.standin.tensor import Tensor

_PLAIN = frozenset((int, float, bool, str, type(None)))


class Kernel:
    """A kernel function: ``kernel(a, b)`` runs one program, ``kernel[2](a, b)`` two on a logical core of two.

    Arguments are NumPy arrays (in HBM; kernels may write them in place) and plain Python values. Inside another kernel
    a call is a plain function call.

    Attributes:
        function: the Python function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if local.core is not None:
            return self.function(*args, **kwargs)
        return launch(self, None, args, kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return Grid(self, grid)

    def __repr__(self) -> str:
        return f"<kernel {self.function.__qualname__} on the NKI stand-in>"


class Grid:
    """A kernel with its number of programs.

    Raises:
        KernelError: a grid that is not 1 or 2.
    """

    def __init__(self, kernel: Kernel, grid: Any) -> None:
        size = grid[0] if isinstance(grid, tuple) and len(grid) == 1 else grid
        if isinstance(size, bool) or not isinstance(size, int) or size not in (1, 2):
            code = kernel.function.__code__
            raise KernelError(
                kernel.function.__name__,
                "grid",
                grid,
                "1 or 2 programs of a logical core",
                f"{code.co_filename}:{code.co_firstlineno}",
            )
        self.kernel = kernel
        self.grid = size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if local.core is not None:
            return self.kernel.function(*args, **kwargs)
        return launch(self.kernel, self.grid, args, kwargs)


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """``@nki.jit``: make a function a kernel. ``mode`` and other options of the real decorator change nothing here."""
    if function is None:
        return lambda f: jit(f, **options)
    return function if isinstance(function, Kernel) else Kernel(function)


def simulate(kernel: Kernel | Grid) -> Callable[..., Any]:
    """``nki.simulate``: on the stand-in every call is simulated, so the kernel itself."""
    return kernel


def launch(kernel: Kernel, grid: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a kernel and publish its counts.

    Returns:
        What the kernel returned, tensors as NumPy arrays; an argument that it returned is that very array.

    Raises:
        KernelError: anything that goes wrong inside.
    """
    programs = grid or 1
    shared = Launch(programs)
    name = kernel.function.__name__
    events = counts.wants_events()
    storages: dict[int, Tensor] = {}
    inputs = [_to_tensor(a, i, storages, kernel) for i, a in enumerate(args)]
    named = {k: _to_tensor(a, k, storages, kernel) for k, a in kwargs.items()}
    for known in storages.values():
        known.storage.shared = programs == 2
    cores = [Core(name, p, programs, 0 if grid is None else 1, shared, events) for p in range(programs)]
    if programs == 1:
        result = _program(kernel, cores[0], inputs, named)
        outputs = _result(result, kernel, cores[0])
    else:
        outputs = _pair(kernel, cores, inputs, named)
    total = cores[0].counts
    for core in cores:
        core.counts.peak_sbuf = core.sbuf.peak
        core.counts.peak_psum = core.psum.peak
    for core in cores[1:]:
        total.add(core.counts)
    counts.publish(total)
    return outputs


class _Body:
    """What Python code in a kernel raises, of whichever class, leaves as an error that names the kernel's own line.

    ``KeyboardInterrupt`` and the like pass through.
    """

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, NeuronError | Aborted):
            said = f"{type(error).__name__}: {error}"
            raise KernelError(self.kernel, "body", said, "no Python error", line_of(traceback), STANDIN) from error


def _program(kernel: Kernel, core: Core, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run the function as one program in this thread."""
    local.core = core
    failed = True
    try:
        # Overflow to infinity and NaN from NaN are what engines do; NumPy would warn of each.
        with _Body(core.kernel), np.errstate(all="ignore"):
            result = kernel.function(*args, **kwargs)
        failed = False
        return result
    finally:
        local.core = None
        core.launch.end(core.program, failed)


def _pair(kernel: Kernel, cores: list[Core], args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run two programs, the second one in a thread; raises the first real error of the two."""
    done: list[Any] = [None, None]

    def second() -> None:
        try:
            done[1] = ("result", _program(kernel, cores[1], args, kwargs))
        except (NeuronError, Aborted) as error:
            done[1] = ("error", error)

    thread = threading.Thread(target=second, name=f"{kernel.function.__name__}[1]")
    thread.start()
    try:
        done[0] = ("result", _program(kernel, cores[0], args, kwargs))
    except (NeuronError, Aborted) as error:
        done[0] = ("error", error)
    finally:
        thread.join()
    if done[1] is None:
        _refuse(kernel, "program 1", "an exception of an unusual kind", "a result", "Its traceback is on stderr.")
    errors = [d[1] for d in done if d[0] == "error"]
    if errors:
        raise min(errors, key=lambda e: isinstance(e, Aborted))
    return _result(done[0][1], kernel, cores[0])


def _to_tensor(value: Any, argument: int | str, storages: dict[int, Tensor], kernel: Kernel) -> Any:
    """NumPy arrays become HBM tensors, also inside lists, tuples, dictionaries and configuration objects."""
    if isinstance(value, np.ndarray):
        known = storages.get(id(value))
        if known is None:
            known = storages[id(value)] = _input(value, argument, kernel)
        return known
    if type(value) in _PLAIN:
        return value
    if type(value) in (list, tuple):
        return type(value)(_to_tensor(v, argument, storages, kernel) for v in value)
    if type(value) is dict:
        return {k: _to_tensor(v, f"{argument}[{k!r}]", storages, kernel) for k, v in value.items()}
    if isinstance(value, NKIObject) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _object(value, argument, storages, kernel)
    if type(value).__module__.partition(".")[0] in ("torch", "jax", "jaxlib") and hasattr(value, "shape"):
        _refuse(kernel, argument, type(value), "a NumPy array", "Call the kernel through wrap_nki for torch tensors.")
    return value


def _object(value: Any, argument: int | str, storages: dict[int, Tensor], kernel: Kernel) -> Any:
    """The object itself, or a copy when attributes of it became tensors."""
    held = vars(value) if hasattr(value, "__dict__") else {}
    changed = {k: new for k, v in held.items() if (new := _to_tensor(v, argument, storages, kernel)) is not v}
    if not changed:
        return value
    twin = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(twin, name, new)
    return twin


def _refuse(kernel: Kernel, argument: int | str, value: Any, limit: str, action: str = "") -> NoReturn:
    code = kernel.function.__code__
    raise KernelError(
        kernel.function.__name__,
        _argument_name(kernel, argument),
        value,
        limit,
        f"{code.co_filename}:{code.co_firstlineno}",
        f"{action} {STANDIN}" if action else STANDIN,
    )


def _argument_name(kernel: Kernel, argument: int | str) -> str:
    names = kernel.function.__code__.co_varnames
    return names[argument] if isinstance(argument, int) and argument < len(names) else f"argument {argument}"


def _input(array: np.ndarray, argument: int | str, kernel: Kernel) -> Tensor:
    dtype = as_dtype(array.dtype)
    if dtype is None:
        _refuse(kernel, argument, array.dtype, "an element type of nki.language")
    if not array.flags.c_contiguous:
        _refuse(kernel, argument, f"strides {array.strides}", "a contiguous array")
    shaped = array if array.ndim else array.reshape(1)
    return Tensor.of(Storage(shaped.shape, dtype, MemoryRegion.shared_hbm, _argument_name(kernel, argument), shaped))


def _result(value: Any, kernel: Kernel, core: Core) -> Any:
    """Returned tensors as arrays."""
    if value is None:
        _refuse(kernel, "return", None, "the tensors that the kernel allocated in nl.shared_hbm, or its mutated inputs")
    if isinstance(value, Tensor):
        if value.storage.region is not MemoryRegion.shared_hbm:
            _refuse(kernel, "return", repr(value), "a tensor in nl.shared_hbm")
        state = value.written()
        if state is not True:
            missing = value.size if state is False else int((~state).sum())
            _refuse(kernel, "return", f"{missing} of {value.size} elements of {value!r} never written", "all written")
        return value.array
    if isinstance(value, list | tuple):
        return type(value)(_result(v, kernel, core) for v in value)
    return value
