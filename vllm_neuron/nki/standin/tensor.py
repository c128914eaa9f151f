"""Tensors of the stand-in: a storage and a strided view of it.

Dimension 0 of an SBUF or PSUM tensor is the partition. An integer index drops a dimension of an HBM tensor; on chip it
keeps the partition dimension with size 1, and the result has at least two dimensions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.aliasing import overwrite
from vllm_neuron.nki.standin.core import fail
from vllm_neuron.nki.standin.dtypes import DType
from vllm_neuron.nki.standin.memory import MemoryRegion, Storage
from vllm_neuron.nki.standin.views import Shape, Views, contiguous


class Tensor(Views):
    """A view of a storage.

    Attributes:
        storage: the memory.
        shape: sizes; ``[partition, free...]`` on chip.
        steps: bytes from one element to the next, a dimension.
        start: bytes from the beginning of the storage to the first element.
        dtype: element type (differs from the storage's after ``view``).
        place: ``hbm``, ``sbuf`` or ``psum``.
        whole: whether the view covers each element of the storage exactly once.
    """

    __slots__ = ("_array", "dtype", "place", "shape", "start", "steps", "storage", "whole")

    def __init__(
        self, storage: Storage, shape: Shape, steps: Shape, start: int, dtype: DType, whole: bool = False
    ) -> None:
        self.storage = storage
        self.shape = shape
        self.steps = steps
        self.start = start
        self.dtype = dtype
        self.place = storage.place
        self.whole = whole
        self._array: NDArray[Any] | None = None

    @classmethod
    def of(cls, storage: Storage) -> Tensor:
        """The whole of a storage."""
        return cls(storage, storage.shape, contiguous(storage.shape, storage.dtype.itemsize), 0, storage.dtype, True)

    @property
    def name(self) -> str:
        """Name given at allocation."""
        return self.storage.name

    @property
    def buffer(self) -> MemoryRegion:
        """Memory region, as ``nl.sbuf`` or ``nl.shared_hbm``."""
        return self.storage.region

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def strides(self) -> Shape:
        """Elements from one to the next, a dimension."""
        return tuple(s // self.dtype.itemsize for s in self.steps)

    @property
    def offset(self) -> int:
        """Elements from the beginning of the storage to the first one."""
        return self.start // self.dtype.itemsize

    @property
    def array(self) -> NDArray[Any]:
        """The elements as a NumPy view of the storage."""
        found = self._array
        if found is None:
            found = np.ndarray(self.shape, self.dtype.numpy, self.storage.raw, self.start, self.steps)
            self._array = found
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)} {self.dtype} in {self.place}"

    def __bool__(self) -> bool:
        fail(
            self.name, "its truth value", "a register: nisa.register_load", "Python can't branch on a tensor's values."
        )

    def _flags(self) -> NDArray[np.bool_]:
        """The view's written flags, writable; the type has the size of the storage's."""
        storage = self.storage
        size = storage.dtype.itemsize
        steps = tuple([s // size for s in self.steps])
        return np.ndarray(self.shape, np.bool_, storage.flags(), self.start // size, steps)

    def _elements(self) -> NDArray[np.int64]:
        """Indices of the storage's elements under each element of a view of another element size."""
        at: NDArray[np.int64] = np.array(self.start, np.int64)
        for count, step in zip(self.shape, self.steps, strict=True):
            at = at[..., None] + np.arange(count, dtype=np.int64) * step
        return (at[..., None] + np.arange(self.dtype.itemsize)) // self.storage.dtype.itemsize

    def written(self) -> bool | NDArray[np.bool_]:
        """True or False when all elements are alike, else one flag an element."""
        state = self.storage.written
        if state is True or state is False:
            return state
        if self.dtype.itemsize == self.storage.dtype.itemsize:
            flags = self._flags()
        else:
            flags = np.asarray(self.storage.flags()[self._elements()].all(axis=-1))
        if flags.all():
            if self.whole:
                self.storage.written = True
            return True
        return flags if flags.any() else False

    def mark(self, where: NDArray[np.bool_] | None = None) -> None:
        """Record that the elements of the view, or those with a flag in ``where``, were written."""
        storage = self.storage
        if storage.neighbours:
            overwrite(self)
        if storage.written is True:
            return
        if self.whole and where is None:
            storage.written = True
        elif self.dtype.itemsize == storage.dtype.itemsize:
            self._flags()[... if where is None else where] = True
        else:
            elements = self._elements()
            storage.flags()[elements if where is None else elements[where]] = True
