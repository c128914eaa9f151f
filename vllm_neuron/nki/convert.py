"""torch tensors as NumPy arrays and back, sharing memory: bfloat16 and the 8-bit floats go by their bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

# Types that NumPy has itself. 64-bit types are left out: no engine of a NeuronCore computes with them.
PLAIN: dict[torch.dtype, str] = {
    torch.bool: "bool_",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.uint16: "uint16",
    torch.int16: "int16",
    torch.uint32: "uint32",
    torch.int32: "int32",
    torch.float16: "float16",
    torch.float32: "float32",
}
# torch type -> ml_dtypes type, and the torch integer of its size.
BY_BITS: dict[torch.dtype, tuple[Any, torch.dtype]] = {
    torch.bfloat16: (ml_dtypes.bfloat16, torch.int16),
    torch.float8_e4m3fn: (ml_dtypes.float8_e4m3fn, torch.uint8),
    torch.float8_e5m2: (ml_dtypes.float8_e5m2, torch.uint8),
}
NAMES: dict[torch.dtype, str] = {**PLAIN, **{kind: np.dtype(bits[0]).name for kind, bits in BY_BITS.items()}}
_BACK: dict[Any, torch.dtype] = {np.dtype(bits[0]): kind for kind, bits in BY_BITS.items()}
_IEEE_E4M3 = np.dtype(ml_dtypes.float8_e4m3)


def names() -> str:
    """The element types that a kernel can take, for messages."""
    return ", ".join(str(kind).removeprefix("torch.") for kind in NAMES)


def to_numpy(tensor: Tensor) -> Array:
    """The same memory as an array of the ml_dtypes type; the tensor's dtype is one of ``NAMES``."""
    tensor = tensor.detach()
    bits = BY_BITS.get(tensor.dtype)
    if bits is None:
        return tensor.numpy()
    return tensor.view(bits[1]).numpy().view(bits[0])


def to_torch(array: Array) -> Tensor:
    """The same memory as a tensor; a copy when the array is read-only or not contiguous.

    trn2's own 8-bit float (e4m3 with infinities, 240 at most) comes back as ``float8_e4m3fn``, whose numbers up to 240
    have the same bits.

    Raises:
        TypeError: an element type that torch has not.
        ValueError: an e4m3 infinity or NaN, whose bits are a number in ``float8_e4m3fn``.
    """
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = array.copy(order="C")
    if array.dtype == _IEEE_E4M3:
        bits = array.view(np.uint8)
        if bool(((bits & 0x7F) >= 0x78).any()):
            raise ValueError("an infinity or NaN in float8_e4m3, which torch.float8_e4m3fn reads as a number")
        return torch.from_numpy(bits).view(torch.float8_e4m3fn)
    kind = _BACK.get(array.dtype)
    if kind is None:
        return torch.from_numpy(array)
    integer = BY_BITS[kind][1]
    return torch.from_numpy(array.view(np.int16 if integer is torch.int16 else np.uint8)).view(kind)
