"""``nki.language`` of the stand-in: types, buffers, tensors, operators, loops and program identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.dtypes import DTYPES, as_dtype
from vllm_neuron.nki.standin.memory import PARTITIONS, PSUM_BANK_BYTES, SBUF_BYTES, Space, Storage
from vllm_neuron.nki.standin.objects import NKIObject as NKIObject
from vllm_neuron.nki.standin.ops import OPS
from vllm_neuron.nki.standin.tensor import Tensor

globals().update(DTYPES)
globals().update(OPS)


class MemoryRegion(Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm


@dataclass(frozen=True)
class _TileSize:
    """Limits of the hardware (trn2)."""

    pmax: int = PARTITIONS
    psum_fmax: int = PSUM_BANK_BYTES // 4
    gemm_stationary_fmax: int = 128
    gemm_moving_fmax: int = 512
    bn_stats_fmax: int = 512
    psum_min_align: int = 4
    sbuf_min_align: int = 1
    total_available_sbuf_size: int = SBUF_BYTES


tile_size = _TileSize()


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> Tensor:
    """A new tensor, filled with NaN (integers: 4) until it is written.

    Args:
        shape: ``[partition, free...]`` in SBUF and PSUM, any in HBM.
        buffer: ``sbuf``, ``psum``, ``hbm`` (= ``private_hbm``) or ``shared_hbm``.
        address: (partition, byte) of a manual allocation; counted, not aliased.

    Raises:
        KernelError: more than 128 partitions, a type that can't be, or no room.
    """
    core = current("ndarray")
    kind = as_dtype(dtype)
    if kind is None:
        fail("ndarray.dtype", dtype, "an element type of nki.language")
    sizes = tuple([int(n) for n in shape])
    if not sizes or min(sizes) < 1:
        fail("ndarray.shape", shape, "sizes of at least 1")
    if buffer is MemoryRegion.shared_hbm:
        return Tensor.of(core.launch.shared(core, sizes, kind, name))
    if buffer is MemoryRegion.private_hbm:
        storage = Storage(sizes, kind, "hbm", name or "hbm_tensor")
        core.counts.hbm_bytes += storage.numel * kind.itemsize
        return Tensor.of(storage)
    if buffer is not MemoryRegion.sbuf and buffer is not MemoryRegion.psum:
        fail("ndarray.buffer", buffer, "nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm")
    if sizes[0] > PARTITIONS:
        fail("ndarray.shape", sizes, f"at most {PARTITIONS} partitions in dimension 0")
    if len(sizes) < 2:
        fail("ndarray.shape", sizes, "[partition, free...], at least two dimensions on chip")
    in_psum = buffer is MemoryRegion.psum
    storage = Storage(sizes, kind, buffer.value, name or f"{buffer.value}_tensor")
    _reserve(core.psum if in_psum else core.sbuf, storage, address)
    return Tensor.of(storage)


def _reserve(space: Space, storage: Storage, address: Any) -> None:
    size = storage.row
    start = None
    if address is not None:
        if len(address) != 2:
            fail("ndarray.address", address, "(partition, byte offset)")
        start = int(address[1])
    claim = space.take(size, start, id(storage))
    if claim is None:
        what = f"{size} bytes a partition for {storage.shape} {storage.dtype}, {space.used()} in use"
        if start is not None:
            what += f", at byte {start}"
        limit = f"{space.capacity} bytes a partition of {storage.buffer}"
        fail("ndarray.shape", what, limit + (" in 8 banks of 2048" if space.banks is not None else ""))
    storage.space = space
    storage.claim = claim


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> Tensor:
    """A new tensor of zeros: ``ndarray`` and ``memset``."""
    from vllm_neuron.nki.standin.isa.vector import memset

    t = ndarray(shape, dtype, buffer, name)
    if t.buffer == "hbm":
        fail("zeros.buffer", buffer, "nl.sbuf or nl.psum", "Write HBM with nisa.dma_copy.")
    memset(t, 0)
    return t


def ds(start: Any, size: Any) -> slice:
    """``start : start + size``; the start may be a register."""
    first = int(start)
    return slice(first, first + int(size))


def program_id(axis: int = 0) -> int:
    """Index of this program in the grid."""
    _axis(axis, "program_id")
    return current("program_id").program


def num_programs(axes: int = 0) -> int:
    """Number of programs in the grid."""
    _axis(axes, "num_programs")
    return current("num_programs").programs


def program_ndim() -> int:
    """Dimensions of the grid: 0 without one."""
    return current("program_ndim").ndim


def _axis(axis: int, what: str) -> None:
    if axis != 0:
        fail(f"{what}.axis", axis, "0, the only dimension of a grid")


# All programs unroll in the stand-in, so each of these is range.
affine_range = range
sequential_range = range
static_range = range


def dynamic_range(*bounds: Any) -> Iterator[int]:
    """A range whose bounds may be registers."""
    return iter(range(*[int(b) for b in bounds]))


def fori_loop(lower: Any, upper: Any, body: Callable[[int], Any]) -> None:
    """Call ``body`` with each index from ``lower`` to ``upper - 1``; bounds may be registers."""
    for i in range(int(lower), int(upper)):
        body(i)


def while_loop(condition: Any, body: Callable[..., Any]) -> None:
    """Call ``body(register)`` while the register is not zero."""
    while condition:
        body(condition)


def shared_constant(values: Any, dtype: Any = None, name: str = "") -> Tensor:
    """A constant in HBM, written by the host: a NumPy array, or anything that makes one."""
    current("shared_constant")
    array = np.asarray(values)
    kind = as_dtype(array.dtype if dtype is None else dtype)
    if kind is None:
        fail("shared_constant.dtype", dtype or array.dtype, "an element type of nki.language")
    array = np.ascontiguousarray(array.astype(kind.numpy))
    return Tensor.of(
        Storage(array.shape or (1,), kind, "hbm", name or "shared_constant", array.reshape(array.shape or 1))
    )


def shared_identity_matrix(n: int, dtype: Any = "uint8", name: str = "") -> Tensor:
    """An identity matrix in HBM."""
    return shared_constant(np.eye(n, dtype=np.uint8), dtype, name or "shared_identity_matrix")


fp32_min = -float(np.finfo(np.float32).max)
