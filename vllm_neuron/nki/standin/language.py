"""``nki.language`` of the stand-in: types, buffers, tensors, operators, loops and program identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.aliasing import place
from vllm_neuron.nki.standin.core import current, fail, missing
from vllm_neuron.nki.standin.dtypes import DTYPES, as_dtype
from vllm_neuron.nki.standin.memory import (
    PARTITIONS,
    PSUM_BANK_BYTES,
    PSUM_BANKS,
    SBUF_BYTES,
    MemoryRegion,
    Space,
    Storage,
)
from vllm_neuron.nki.standin.objects import NKIObject as NKIObject
from vllm_neuron.nki.standin.ops import OPS
from vllm_neuron.nki.standin.pattern import Register
from vllm_neuron.nki.standin.tensor import Tensor

bool_ = DTYPES["bool_"]
int8 = DTYPES["int8"]
uint8 = DTYPES["uint8"]
int16 = DTYPES["int16"]
uint16 = DTYPES["uint16"]
int32 = DTYPES["int32"]
uint32 = DTYPES["uint32"]
float32 = DTYPES["float32"]
tfloat32 = DTYPES["tfloat32"]
float16 = DTYPES["float16"]
bfloat16 = DTYPES["bfloat16"]
float8_e4m3 = DTYPES["float8_e4m3"]
float8_e4m3fn = DTYPES["float8_e4m3fn"]
float8_e5m2 = DTYPES["float8_e5m2"]
float8_e8m0fnu = DTYPES["float8_e8m0fnu"]
float8_e4m3fn_x4 = DTYPES["float8_e4m3fn_x4"]
float8_e5m2_x4 = DTYPES["float8_e5m2_x4"]
float4_e2m1fn_x4 = DTYPES["float4_e2m1fn_x4"]

add = OPS["add"]
subtract = OPS["subtract"]
multiply = OPS["multiply"]
maximum = OPS["maximum"]
minimum = OPS["minimum"]
divide = OPS["divide"]
power = OPS["power"]
mod = OPS["mod"]
fmod = OPS["fmod"]
abs_max = OPS["abs_max"]
abs_min = OPS["abs_min"]
equal = OPS["equal"]
not_equal = OPS["not_equal"]
less = OPS["less"]
less_equal = OPS["less_equal"]
greater = OPS["greater"]
greater_equal = OPS["greater_equal"]
logical_and = OPS["logical_and"]
logical_or = OPS["logical_or"]
logical_xor = OPS["logical_xor"]
bitwise_and = OPS["bitwise_and"]
bitwise_or = OPS["bitwise_or"]
bitwise_xor = OPS["bitwise_xor"]
left_shift = OPS["left_shift"]
right_shift = OPS["right_shift"]
copy = OPS["copy"]
identity = OPS["identity"]
abs = OPS["abs"]
square = OPS["square"]
sqrt = OPS["sqrt"]
rsqrt = OPS["rsqrt"]
reciprocal = OPS["reciprocal"]
exp = OPS["exp"]
log = OPS["log"]
sin = OPS["sin"]
tanh = OPS["tanh"]
arctan = OPS["arctan"]
erf = OPS["erf"]
sign = OPS["sign"]
relu = OPS["relu"]
sigmoid = OPS["sigmoid"]
silu = OPS["silu"]
gelu = OPS["gelu"]
gelu_apprx_tanh = OPS["gelu_apprx_tanh"]
gelu_apprx_sigmoid = OPS["gelu_apprx_sigmoid"]
softplus = OPS["softplus"]
mish = OPS["mish"]
negative = OPS["negative"]
logical_not = OPS["logical_not"]
invert = OPS["invert"]
floor = OPS["floor"]
ceil = OPS["ceil"]


NkiTensor = Tensor


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
    psum_bank_fmax: int = PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes: int = PSUM_BANK_BYTES
    psum_num_banks: int = PSUM_BANKS
    psum_fmax_bytes: int = PSUM_BANK_BYTES
    sbuf_fmax: int = SBUF_BYTES // 4
    sbuf_fmax_bytes: int = SBUF_BYTES
    sbuf_size_bytes: int = SBUF_BYTES * PARTITIONS
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
        address: (partition, byte) of a manual allocation; a write to overlapping tensors makes the other one unwritten.

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
    if type(buffer) is str and buffer in MemoryRegion.__members__:
        buffer = MemoryRegion(buffer)
    if buffer is MemoryRegion.shared_hbm:
        return Tensor.of(core.launch.shared(core, sizes, kind, name))
    if buffer is MemoryRegion.private_hbm:
        storage = Storage(sizes, kind, buffer, name or "hbm_tensor")
        core.counts.hbm_bytes += storage.numel * kind.itemsize
        return Tensor.of(storage)
    if buffer is not MemoryRegion.sbuf and buffer is not MemoryRegion.psum:
        fail("ndarray.buffer", buffer, "nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm")
    if sizes[0] > PARTITIONS:
        fail("ndarray.shape", sizes, f"at most {PARTITIONS} partitions in dimension 0")
    if len(sizes) < 2:
        fail("ndarray.shape", sizes, "[partition, free...], at least two dimensions on chip")
    in_psum = buffer is MemoryRegion.psum
    storage = Storage(sizes, kind, buffer, name or f"{buffer}_tensor")
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
        limit = f"{space.capacity} bytes a partition of {storage.place}"
        fail("ndarray.shape", what, limit + (" in 8 banks of 2048" if space.banks is not None else ""))
    storage.first = int(address[0]) if address is not None else 0
    if storage.first + storage.shape[0] > PARTITIONS:
        fail("ndarray.address", address, f"partitions inside 0 to {PARTITIONS - 1} for shape {storage.shape}")
    storage.space = space
    storage.claim = claim
    if start is not None:
        place(space, storage, start)


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> Tensor:
    """A new tensor of zeros: ``ndarray`` and ``memset``."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> Tensor:
    """A new tile of ones."""
    return full(shape, 1, dtype, buffer, name)


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> Tensor:
    """A new tile of one value: ``ndarray`` and ``memset``."""
    from vllm_neuron.nki.standin.isa.vector import memset

    t = ndarray(shape, dtype, buffer, name)
    if t.place == "hbm":
        fail("full.buffer", buffer, "nl.sbuf or nl.psum", "Write HBM with nisa.dma_copy.")
    memset(t, fill_value)
    return t


def load(src: Tensor, dtype: Any = None) -> Tensor:
    """A new SBUF tile with a copy of an HBM tensor."""
    from vllm_neuron.nki.standin.isa.dma import dma_copy

    t = ndarray(src.shape if len(src.shape) > 1 else (1, *src.shape), dtype or src.dtype)
    dma_copy(t, src)
    return t


def store(dst: Tensor, value: Tensor) -> None:
    """Copy a tile to HBM."""
    from vllm_neuron.nki.standin.isa.dma import dma_copy

    dma_copy(dst, value)


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


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Register], Any], step: int = 1) -> None:
    """Call ``body_fun`` with a register that holds ``lower``, ``lower + step``, ... below ``upper``."""
    for i in range(int(lower), int(upper), step):
        body_fun(Register(i))


def while_loop(init: Register, body_fun: Callable[[Register], Register]) -> None:
    """``r = init``, and while ``r`` is not zero ``r = body_fun(r)``."""
    register = init
    while register:
        register = body_fun(register)
        if not isinstance(register, Register):
            fail("while_loop.body_fun", type(register).__name__, "the next condition, a register")


def shared_constant(constant: Any, dtype: Any = None, name: str = "") -> Tensor:
    """A constant in shared HBM, put there when a model is loaded: an array, or the path of an .npy file."""
    current("shared_constant")
    array = np.load(constant) if isinstance(constant, str) else np.asarray(constant)
    kind = as_dtype(array.dtype if dtype is None else dtype)
    if kind is None:
        fail("shared_constant.dtype", dtype or array.dtype, "an element type of nki.language")
    array = np.ascontiguousarray(array.astype(kind.numpy))
    shape = array.shape or (1,)
    region = MemoryRegion.shared_hbm
    return Tensor.of(Storage(shape, kind, region, name or "shared_constant", array.reshape(shape)))


def shared_identity_matrix(n: int, dtype: Any = "uint8", dst: Tensor | None = None) -> Tensor:
    """An identity matrix in SBUF, in ``dst`` or in a new tile; counted as one DMA from HBM."""
    from vllm_neuron.nki.standin.isa.dma import dma_copy

    identity = shared_constant(np.eye(n, dtype=np.uint8), dtype, "identity")
    t = ndarray((n, n), dtype, MemoryRegion.sbuf, "identity") if dst is None else dst
    dma_copy(t, identity)
    return t


class fp32:
    """Limits of float32."""

    min = -float(np.finfo(np.float32).max)
    max = float(np.finfo(np.float32).max)


def __getattr__(name: str) -> Any:
    raise AttributeError(missing(name, "nki.language", globals()))
