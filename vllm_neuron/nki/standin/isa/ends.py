"""The two ends of a DMA: a view with a known address, one that a scalar moves, or rows that indices pick."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_neuron.nki.standin import races
from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.enums import oob_mode as bounds
from vllm_neuron.nki.standin.pattern import Indirect
from vllm_neuron.nki.standin.tensor import Tensor


class End:
    """One end of a transfer.

    Attributes:
        argument: for messages.
        tensor: the view as it was passed.
        plain: the view when its address is known; None for picked rows, and for a transfer that is skipped as a whole.
        shape: its shape.
        inside: which rows are inside the tensor; None when all are by construction.
        picked: for picked rows, their offsets from ``base`` in steps of ``stride`` bytes, those inside only; else None.

    Raises:
        KernelError: a buffer out of reach of DMA, or an index outside without ``oob_mode.skip``.
    """

    __slots__ = ("argument", "base", "inside", "picked", "plain", "shape", "stride", "tensor")

    def __init__(self, t: Any, argument: str, oob: Any) -> None:
        self.argument = argument
        self.inside: Any = None
        self.picked: Any = None
        self.base = 0
        self.stride = 0
        if type(t) is not Indirect:
            self.tensor: Tensor = o.operand(t, argument, o.DMA)
            self.plain: Tensor | None = self.tensor
            self.shape = self.tensor.shape
            return
        self.tensor = t
        self.shape = t.shape
        if t.place == "psum":
            fail(argument, f"{t!r}", "a tensor in hbm or sbuf")
        self.plain = None
        if t.vector is None:
            self.plain = t.fixed()
            if self.plain is None and oob is not bounds.skip:
                self._outside(t, t.scalar_value())
            self.inside = np.array(self.plain is not None)
            return
        self._pick(t, oob)

    def _pick(self, t: Indirect, oob: Any) -> None:
        starts, self.inside = t.rows()
        if not self.inside.all():
            if oob is not bounds.skip:
                assert t.vector is not None
                self._outside(t, int(t.vector.array.reshape(-1)[int(np.argmin(self.inside))]))
            starts = starts[self.inside]
        self.stride = t.stride
        if len(starts):
            self.base = int(starts.min())
        self.picked = (starts - self.base) // t.stride

    def _outside(self, t: Indirect, index: int) -> None:
        fail(
            self.argument,
            f"index {index}",
            f"0 to {t.limit - 1} of {t.base!r}",
            "Pass oob_mode=nisa.oob_mode.skip to leave such rows alone.",
        )

    def _window(self, memory: Any, dtype: Any, unit: int) -> Any:
        """All rows that an index can pick, over memory that has ``unit`` bytes for an element of the view."""
        t = self.tensor
        size = t.dtype.itemsize
        count = int(self.picked.max()) + 1
        steps = (self.stride // size * unit, *[step // size * unit for step in t.steps[1:]])
        return np.ndarray((count, *t.shape[1:]), dtype, memory, self.base // size * unit, steps)

    def _same_size(self) -> bool:
        return self.tensor.dtype.itemsize == self.tensor.storage.dtype.itemsize

    def read(self) -> Any:
        """The values; zero in rows outside.

        Raises:
            KernelError: elements that were never written, or that the other program wrote without a barrier.
        """
        t = self.tensor
        storage = t.storage
        if self.plain is not None:
            if storage.written is not True:
                o.unwritten(self.plain, self.argument)
            if storage.shared:
                races.check(current(self.argument), self.plain, self.argument)
            return self.plain.array
        if self.picked is None or not len(self.picked):
            return np.zeros(self.shape, t.dtype.numpy)
        if storage.written is not True and self._same_size():
            flags = self._window(storage.flags(), np.bool_, 1)[self.picked]
            if not flags.all():
                fail(self.argument, f"picked rows of {t!r} never written", "elements written before they are read")
        if storage.shared and storage.writers is not None and self._same_size():
            marks = self._window(storage.writers, np.int8, 1)[self.picked]
            races.check_marks(current(self.argument), t, self.argument, marks)
        rows = self._window(storage.raw, t.dtype.numpy, t.dtype.itemsize)[self.picked]
        if len(rows) == self.shape[0]:
            return rows
        values = np.zeros(self.shape, t.dtype.numpy)
        values[self.inside] = rows
        return values

    def write(self, values: Any, keep: Any) -> None:
        """Store values of this view's type; ``keep`` (one flag a row, None for all) says which rows."""
        if self.plain is not None:
            self._write_plain(self.plain, values, keep)
            return
        if self.picked is None:
            return
        if keep is None:
            picked, values = self.picked, values if self.inside.all() else values[self.inside]
        else:
            picked, values = self.picked[keep[self.inside]], values[self.inside & keep]
        if not len(picked):
            return
        t = self.tensor
        storage = t.storage
        self._window(storage.raw, t.dtype.numpy, t.dtype.itemsize)[picked] = values
        if storage.written is not True:
            if not self._same_size():
                fail(self.argument, t.dtype, f"a view of the size of {storage.dtype} for a scatter")
            self._window(storage.flags(), np.bool_, 1)[picked] = True
        if storage.shared and self._same_size():
            core = current(self.argument)
            self._window(races.marks(t), np.int8, 1)[picked] = core.program + 1

    def _write_plain(self, plain: Tensor, values: Any, keep: Any) -> None:
        if keep is None or keep.all():
            plain.array[...] = values
            plain.mark()
        elif keep.any():
            plain.array[keep] = values[keep]
            plain.mark(np.broadcast_to(keep.reshape(-1, *(1,) * (len(plain.shape) - 1)), plain.shape))
        if plain.storage.shared:
            races.wrote(current(self.argument), plain)
