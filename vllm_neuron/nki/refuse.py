"""Errors of a kernel call, raised by functions that ``torch.compile`` calls while it traces and does not look into.

Inside a traced function their arguments must be constants; the exception then reaches the user inside torch's own.
"""

from __future__ import annotations

from typing import Any, NoReturn

from vllm_neuron.errors import KernelError, nearest
from vllm_neuron.nki.graphs import constant


@constant
def call(kernel: str, argument: str, value: Any, limit: str, where: str, action: str = "") -> NoReturn:
    """Raise the error of a call whose argument the kernel does not take."""
    raise KernelError(kernel, argument, value, limit, where, action)


@constant
def unknown(kernel: str, name: str, names: tuple[str, ...], what: str = "has no argument") -> NoReturn:
    """Raise for a name that is none of the kernel's."""
    raise TypeError(f"kernel {kernel}: {what} {name!r}. {nearest(name, names)}")


@constant
def signature(kernel: str, text: str, names: tuple[str, ...]) -> NoReturn:
    """Raise for a call that does not fit the kernel's signature."""
    raise TypeError(f"kernel {kernel}: {text}. It takes {', '.join(names)}.")
