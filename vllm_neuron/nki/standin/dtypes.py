"""Element types of the stand-in: the names of ``nki.language`` on NumPy and ml_dtypes.

A type is a ``str`` subclass, because public kernels compare types by ``==``, by ``str(dtype)`` and as dictionary keys.
The packed MX types (``*_x4``) exist as names only: no primitive of the stand-in computes with them.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


class DType(str):
    """An element type: its public name, with the NumPy type that stores it.

    Attributes:
        numpy: the NumPy dtype of one element in memory.
        itemsize: bytes of one element.
        kind: ``float``, ``int``, ``bool`` or ``packed``.
        fill: the sentinel of a new tensor: NaN for floats, 4 for integers.
    """

    numpy: np.dtype[Any]
    itemsize: int
    kind: str
    fill: Any

    def __new__(cls, name: str, numpy: Any, kind: str) -> DType:
        self = super().__new__(cls, name)
        self.numpy = np.dtype(numpy)
        self.itemsize = self.numpy.itemsize
        self.kind = kind
        self.fill = np.nan if kind == "float" else True if kind == "bool" else 4
        if name == "float8_e8m0fnu":
            self.fill = 1.0
        return self

    def __repr__(self) -> str:
        return f"nl.{self}"


_TYPES = (
    ("bool_", np.bool_, "bool"),
    ("int8", np.int8, "int"),
    ("uint8", np.uint8, "int"),
    ("int16", np.int16, "int"),
    ("uint16", np.uint16, "int"),
    ("int32", np.int32, "int"),
    ("uint32", np.uint32, "int"),
    ("float32", np.float32, "float"),
    ("tfloat32", np.float32, "float"),
    ("float16", np.float16, "float"),
    ("bfloat16", ml_dtypes.bfloat16, "float"),
    ("float8_e4m3", ml_dtypes.float8_e4m3, "float"),
    ("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float"),
    ("float8_e5m2", ml_dtypes.float8_e5m2, "float"),
    ("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float"),
    ("float8_e4m3fn_x4", np.uint32, "packed"),
    ("float8_e5m2_x4", np.uint32, "packed"),
    ("float4_e2m1fn_x4", np.uint16, "packed"),
)

DTYPES: dict[str, DType] = {name: DType(name, numpy, kind) for name, numpy, kind in _TYPES}

FLOAT32 = DTYPES["float32"]
FLOAT32_NUMPY = FLOAT32.numpy
FP8 = frozenset(("float8_e4m3", "float8_e4m3fn", "float8_e5m2"))

# tfloat32 and the packed types share a NumPy type with a plain one and can't be told from an array's dtype.
_BY_NUMPY: dict[np.dtype[Any], DType] = {
    t.numpy: t for t in reversed(DTYPES.values()) if t.kind != "packed" and t != "tfloat32"
}
_INT64 = frozenset((np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.uint64)))


def as_dtype(value: Any) -> DType | None:
    """The stand-in's type of a name, a NumPy dtype or a NumPy scalar type; None if there is none."""
    if type(value) is DType:
        return value
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value]
    try:
        return _BY_NUMPY.get(np.dtype(value))
    except TypeError:
        return None


def cast(values: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Values in another type as the engines write them.

    Float to integer rounds to the nearest even and saturates. That isn't documented for the hardware: kernels must not
    depend on it. Everything else follows NumPy and ml_dtypes (round to nearest even).
    """
    kind = target.kind
    if kind in "iu" and values.dtype.kind not in "iub":
        info = np.iinfo(target)
        rounded = np.rint(values.astype(np.float64))
        return np.clip(np.nan_to_num(rounded, nan=0.0, posinf=info.max, neginf=info.min), info.min, info.max).astype(
            target
        )
    if kind in "iu" and values.dtype.kind in "iu":
        info = np.iinfo(target)
        return np.clip(values.astype(np.int64), info.min, info.max).astype(target)
    if kind == "b":
        return values != 0
    return values.astype(target)
