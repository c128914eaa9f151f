"""Reads of shared HBM that the other program wrote without a barrier in between.

On hardware such a read may come too early; here, in two threads, it might by luck be right. The check is exact for what
happened in this run: it can't see a read that came before the other program's write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import Core, fail
from vllm_neuron.nki.standin.memory import Storage
from vllm_neuron.nki.standin.tensor import Tensor

_lock = threading.Lock()


def marks(t: Tensor) -> NDArray[np.int8]:
    """Who wrote each element of the storage last: 0 nobody since the last barrier, else program + 1."""
    storage = t.storage
    if storage.writers is None:
        with _lock:
            if storage.writers is None:
                storage.writers = np.zeros(storage.numel, np.int8)
    return storage.writers


def _view(t: Tensor, writers: NDArray[np.int8]) -> NDArray[np.int8] | None:
    """The marks under a view; None under a type of another size."""
    size = t.storage.dtype.itemsize
    if t.dtype.itemsize != size:
        return None
    return np.ndarray(t.shape, np.int8, writers, t.start // size, tuple([s // size for s in t.steps]))


def wrote(core: Core, t: Tensor) -> None:
    """Remember a write to shared memory."""
    view = _view(t, marks(t))
    if view is not None:
        view[...] = core.program + 1


def check(core: Core, t: Tensor, argument: str) -> None:
    """Refuse a read of what the other program wrote since the last barrier.

    Raises:
        KernelError: see above.
    """
    writers = t.storage.writers
    view = None if writers is None else _view(t, writers)
    if view is not None:
        check_marks(core, t, argument, view)


def check_marks(core: Core, t: Tensor, argument: str, found: NDArray[np.int8]) -> None:
    """Refuse marks of the other program.

    Raises:
        KernelError: see ``check``.
    """
    if (found == 2 - core.program).any():
        fail(
            argument,
            f"elements of {t!r} that program {1 - core.program} wrote",
            "nisa.core_barrier on the tensor between the write and the read",
        )


def settle(storages: Iterable[Storage]) -> None:
    """Forget the writes to storages that a barrier covers."""
    for storage in storages:
        if storage.writers is not None:
            storage.writers[:] = 0
