"""One safetensors file: its header checked against the file, its tensors read by slices.

The format: 8 bytes little-endian header length, a JSON header with dtype, shape and byte range of each tensor, then the
bytes. Parts are read with plain reads into the result's own memory: the pages of a memory map would count as the
process's memory until the map is closed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError, UnsupportedError
from vllm_neuron.utils.weight_loader import index_bounds

MAX_HEADER = 100 * 2**20
BLOCK = 8 * 2**20
PAGE = 4096

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Bits of one element -> the format's dtypes.
_DTYPES = {
    8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E5M2FNUZ F8_E4M3FNUZ",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
    6: "F6_E2M3 F6_E3M2",
    4: "F4",
}
BITS = {name: bits for bits, names in _DTYPES.items() for name in names.split()}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header describes it.

    Attributes:
        file: the file that holds it.
        shape: sizes, outermost first.
        dtype: in safetensors' spelling (``BF16``).
        offset: of its first byte in the file.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * BITS[self.dtype] // 8


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Names, shapes and dtypes of a file's tensors, in the order of the header.

    Raises:
        CheckpointError: the file can't be read, is truncated, or its header makes no sense.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            _refuse_pointer(file, start)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= MAX_HEADER:
                raise _damaged(file, "header length", length, f"2 to {MAX_HEADER} bytes")
            if length > size - 8:
                raise _damaged(file, "size", size, f"at least {8 + length} bytes, as its header's length declares")
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(str(file), error.strerror, "a readable file") from error
    tensors = _parse(file, raw)
    declared = max((info.offset + info.nbytes for info in tensors.values()), default=8 + length)
    if declared != size:
        raise _damaged(file, "size", size, f"{declared} bytes, as its header declares")
    return tensors


def _damaged(file: Path, what: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{file.name}: {what}", value, expected, "The file is truncated or damaged: fetch it again.")


def _refuse_pointer(file: Path, start: bytes) -> None:
    if start == b"version ":
        raise CheckpointError(file.name, "a Git LFS pointer", "a safetensors file", "Run 'git lfs pull' in the folder.")


def _parse(file: Path, raw: bytes) -> dict[str, TensorInfo]:
    begin = 8 + len(raw)
    try:
        header = json.loads(raw, object_pairs_hook=_no_repeats)
        header.pop("__metadata__", None)
        entries = {name: (str(e["dtype"]), tuple(e["shape"]), e["data_offsets"]) for name, e in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, "header", f"{type(error).__name__}: {error}", "a safetensors header in JSON") from error
    tensors = {}
    for name, (dtype, shape, offsets) in entries.items():
        if dtype not in BITS:
            raise UnsupportedError(f"{file.name}: {name}: dtype", dtype, "one of " + ", ".join(BITS))
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise _damaged(file, f"{name}: shape", shape, "sizes of 0 or more")
        info = TensorInfo(file, shape, dtype)
        if not (
            isinstance(offsets, list)
            and len(offsets) == 2
            and all(isinstance(n, int) and n >= 0 for n in offsets)
            and offsets[1] - offsets[0] == info.nbytes
        ):
            raise _damaged(file, f"{name}: data_offsets", offsets, f"{info.nbytes} bytes for {dtype} {list(shape)}")
        tensors[name] = TensorInfo(file, shape, dtype, begin + offsets[0])
    _refuse_gaps(file, tensors, begin)
    return tensors


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{max(names, key=names.count)!r} is listed twice")
    return found


def _refuse_gaps(file: Path, tensors: dict[str, TensorInfo], begin: int) -> None:
    at = begin
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != at:
            raise _damaged(file, f"{name}: data_offsets", info.offset - begin, f"{at - begin}, with no gap or overlap")
        at += info.nbytes


class SafetensorsReader:
    """Reads parts of one file's tensors; opened at the first read.

    Attributes:
        bytes_read: bytes that were asked of the file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.bytes_read = 0
        self._stream: FileIO | None = None

    def close(self) -> None:
        """Let go of the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def read_into(self, out: Tensor, offset: int) -> None:
        """Fill a contiguous tensor from the bytes at ``offset``.

        Raises:
            CheckpointError: the file ends before, or can't be read.
        """
        view = out.view(-1).view(torch.uint8).numpy().data if out.numel() else memoryview(b"")
        try:
            if self._stream is None:
                self._stream = FileIO(self.file)
            self._stream.seek(offset)
            while view:
                count = self._stream.readinto(view)
                if not count:
                    raise _damaged(self.file, "size", self.file.stat().st_size, "as long as when the load began")
                self.bytes_read += count
                view = view[count:]
        except OSError as error:
            raise CheckpointError(str(self.file), error.strerror, "a readable file") from error


class FileSlice:
    """A tensor in a file, lazy. Reading a part reads that part's bytes, cast to ``dtype`` block by block.

    Runs of less than a page are read together with what lies between them, since the disk would do it anyway.
    """

    def __init__(self, info: TensorInfo, reader: SafetensorsReader, dtype: torch.dtype | None = None) -> None:
        self._info, self._reader = info, reader
        self._stored = FLOATS[info.dtype]
        self._dtype = dtype or self._stored
        self._width = BITS[info.dtype] // 8

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The dtype in the file, in safetensors' spelling."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part: ``...``, a slice, or a tuple of slices."""
        shape = [stop - start for start, stop in index_bounds(index, self._info.shape)]
        out = torch.empty(shape, dtype=self._dtype)
        self.read_into(index, out)
        return out

    def read_into(self, index: Any, out: Tensor) -> None:
        """Read a part into a contiguous tensor of its shape and of this slice's dtype."""
        bounds = index_bounds(index, self._info.shape)
        assert out.is_contiguous() and out.dtype == self._dtype
        assert list(out.shape) == [stop - start for start, stop in bounds]
        if out.numel():
            # A scalar reads as one row of one element.
            self._fill(out if bounds else out.view(1), self._info.shape or (1,), bounds or [(0, 1)], self._info.offset)

    def _fill(self, out: Tensor, shape: Sequence[int], bounds: Sequence[tuple[int, int]], offset: int) -> None:
        """Read ``bounds`` of a tensor of ``shape`` that starts at ``offset`` in the file."""
        (start, stop), inner, inner_bounds = bounds[0], shape[1:], bounds[1:]
        stride = math.prod(inner) * self._width
        if all(b == (0, n) for b, n in zip(inner_bounds, inner, strict=True)):
            self._run(out.view(-1), offset + start * stride)
        elif len(inner) == 1 and (inner_bounds[0][1] - inner_bounds[0][0]) * self._width < PAGE:
            rows = max(1, BLOCK // stride)
            for at in range(start, stop, rows):
                block = torch.empty((min(rows, stop - at), inner[0]), dtype=self._stored)
                self._reader.read_into(block, offset + at * stride)
                out[at - start : at - start + len(block)].copy_(block[:, slice(*inner_bounds[0])])
        else:
            for row in range(start, stop):
                self._fill(out[row - start], inner, inner_bounds, offset + row * stride)

    def _run(self, out: Tensor, offset: int) -> None:
        """Read neighbouring elements."""
        if self._stored == self._dtype:
            self._reader.read_into(out, offset)
            return
        step = BLOCK // self._width
        block = torch.empty(min(step, len(out)), dtype=self._stored)
        for at in range(0, len(out), step):
            part = block[: min(step, len(out) - at)]
            self._reader.read_into(part, offset + at * self._width)
            out[at : at + len(part)].copy_(part)
