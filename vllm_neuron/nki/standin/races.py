"""Reads of shared HBM that the other program wrote without a barrier in between.

On hardware such a read may come too early; here, in two threads, it might by luck be right. The check is exact for what
happened in this run: it can't see a read that came before the other program's write.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import Core, fail
from vllm_neuron.nki.standin.memory import Storage
from vllm_neuron.nki.standin.tensor import Tensor

_lock = threading.Lock()


def _marks(t: Tensor, index: Any) -> NDArray[np.int8] | None:
    """Who wrote the view's elements last (0 nobody, else program + 1); None without marks or under another type."""
    writers = t.storage.writers
    size = t.storage.dtype.itemsize
    if writers is None or t.dtype.itemsize != size:
        return None
    if index is not None:
        return writers[index]
    return np.ndarray(t.shape, np.int8, writers, t.start // size, tuple([s // size for s in t.steps]))


def wrote(core: Core, t: Tensor, index: Any = None) -> None:
    """Remember a write to shared memory, to a view or to elements of its storage."""
    if t.storage.writers is None:
        with _lock:
            if t.storage.writers is None:
                t.storage.writers = np.zeros(t.storage.numel, np.int8)
    if index is not None:
        t.storage.writers[index] = core.program + 1
        return
    marks = _marks(t, None)
    if marks is not None:
        marks[...] = core.program + 1


def check(core: Core, t: Tensor, argument: str, index: Any = None) -> None:
    """Refuse a read of what the other program wrote since the last barrier.

    Raises:
        KernelError: see above.
    """
    marks = _marks(t, index)
    if marks is not None and (marks == 2 - core.program).any():
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
