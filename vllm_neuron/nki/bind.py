"""A kernel's own signature: which arguments a call gives to which parameter, and errors that name the nearest one.

The code is plain loops over tuples and dictionaries, so that ``torch.compile`` can follow it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm_neuron.nki import refuse


def function_of(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel, whatever ``nki.jit`` of which version has put around it.

    Raises:
        TypeError: there is no function in it.
    """
    seen = kernel
    for _ in range(8):
        if inspect.isfunction(seen):
            return seen
        inner = next(
            (getattr(seen, name) for name in ("__wrapped__", "func", "fn", "function", "_func") if hasattr(seen, name)),
            None,
        )
        if inner is None:
            break
        seen = inner
    raise TypeError(f"wrap_nki: got {kernel!r}, expected a function, or what @nki.jit makes of one")


def check_outputs(kernel: str, outputs: Any, names: Sequence[str]) -> None:
    """Whether ``outputs`` can be called with a kernel's arguments by name.

    Raises:
        TypeError: it is no function, or one with other parameters.
    """
    if not callable(outputs):
        raise TypeError(f"kernel {kernel}: outputs is {outputs!r}, expected a function of {', '.join(names)}")
    try:
        inspect.signature(outputs).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TypeError(f"kernel {kernel}: outputs is called with {', '.join(names)} by name: {error}") from error


class Parameters:
    """Names and defaults of a kernel's parameters.

    Args:
        function: the kernel's Python function.

    Raises:
        TypeError: it takes ``*args`` or ``**kwargs``, so that no call of it can be checked.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.kernel = function.__name__
        found = list(inspect.signature(function).parameters.values())
        loose = [str(p) for p in found if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if loose:
            raise TypeError(f"kernel {self.kernel}: takes {', '.join(loose)}, expected named parameters only")
        self.names: tuple[str, ...] = tuple(p.name for p in found)
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in found)
        self.defaults: dict[str, Any] = {p.name: p.default for p in found if p.default is not p.empty}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every parameter's value, in the kernel's order.

        Raises:
            TypeError: an argument that the kernel does not have, that is given twice, or that is missing.
        """
        if len(args) > self.positional:
            refuse.signature(self.kernel, f"got {len(args)} positional arguments, not {self.positional}", self.names)
        given = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                refuse.unknown(self.kernel, name, self.names)
            if name in given:
                refuse.signature(self.kernel, f"argument {name!r} is given twice", self.names)
            given[name] = value
        bound = {}
        for name in self.names:
            if name in given:
                bound[name] = given[name]
            elif name in self.defaults:
                bound[name] = self.defaults[name]
            else:
                refuse.signature(self.kernel, f"argument {name!r} is missing", self.names)
        return bound
