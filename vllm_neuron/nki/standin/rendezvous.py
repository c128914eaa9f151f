"""Where the two programs of a logical core meet: barriers, send and receive, shared allocations.

A program that fails, returns early or waits for something else than its partner ends the wait with an error instead of
a deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from vllm_neuron.nki.standin.core import Core, fail
from vllm_neuron.nki.standin.dtypes import DType
from vllm_neuron.nki.standin.memory import MemoryRegion, Storage


class Aborted(RuntimeError):
    """The partner failed; its own error is the one to show."""


class Launch:
    """What the programs of one kernel call share.

    Attributes:
        programs: number of programs.
    """

    def __init__(self, programs: int) -> None:
        self.programs = programs
        self._condition = threading.Condition()
        self._waiting: dict[int, tuple[Hashable, Any]] = {}
        self._taken: dict[int, Any] = {}
        self._ended: set[int] = set()
        self._failed = False
        self._shared: dict[Hashable, Storage] = {}
        self._names: set[tuple[int, str]] = set()
        self._order: dict[int, int] = {}

    def end(self, program: int, failed: bool) -> None:
        """A program returned or failed."""
        with self._condition:
            self._ended.add(program)
            self._failed |= failed
            self._condition.notify_all()

    def meet(self, core: Core, key: Hashable, payload: Any, what: str, both: Callable[[], None] | None = None) -> Any:
        """Wait for the partner at the same ``key``; returns its payload. ``both`` runs once, when both are there.

        Raises:
            KernelError: the partner returned, or waits at another key.
            Aborted: the partner failed.
        """
        me, other = core.program, 1 - core.program
        with self._condition:
            self._waiting[me] = (key, payload)
            if other in self._waiting and self._waiting[other][0] == key:
                self._taken[other] = payload
                self._taken[me] = self._waiting.pop(other)[1]
                del self._waiting[me]
                if both is not None:
                    both()
                self._condition.notify_all()
            while me not in self._taken:
                if self._failed:
                    raise Aborted(f"the other program of {core.kernel} failed while this one waited in {what}")
                if other in self._ended:
                    self._failed = True
                    self._condition.notify_all()
                    fail(what, key, "the other program to come here too", "It returned without doing so.")
                if other in self._waiting and self._waiting[other][0] != key:
                    theirs = self._waiting[other][0]
                    self._failed = True
                    self._condition.notify_all()
                    fail(what, key, f"both programs at the same place; the other waits at {theirs}")
                self._condition.wait()
            return self._taken.pop(me)

    def shared(self, core: Core, shape: tuple[int, ...], dtype: DType, name: str) -> Storage:
        """A ``shared_hbm`` tensor: one storage for both programs, matched by name, else by order of allocation."""
        with self._condition:
            key: Hashable = name
            if not name or (core.program, name) in self._names:
                key = (name, self._next(core.program))
            self._names.add((core.program, name))
            found = self._shared.get(key)
            if found is None:
                found = Storage(shape, dtype, MemoryRegion.shared_hbm, name or "shared_hbm_tensor")
                if self.programs == 2:
                    found.shared = True
                    found.flags()
                self._shared[key] = found
                core.counts.hbm_bytes += found.numel * dtype.itemsize
            elif found.shape != shape or found.dtype != dtype:
                fail(
                    "ndarray.buffer",
                    f"shared_hbm {shape} {dtype}",
                    f"{found.shape} {found.dtype}, as the other program allocated",
                    "Both programs allocate the same shared tensors in the same order, or give them names.",
                )
            return found

    def _next(self, program: int) -> int:
        self._order[program] = self._order.get(program, -1) + 1
        return self._order[program]
