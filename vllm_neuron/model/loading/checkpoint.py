"""A checkpoint folder: checked before anything is read, and read by slices.

Only safetensors files are read. Their headers tell names, shapes and dtypes; a file is reopened now and then, so that
the pages of a memory-mapped file do not pile up in the process.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from vllm_neuron.errors import CheckpointError, UnsupportedError
from vllm_neuron.utils.weight_loader import LazySlice

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100 * 2**20
REOPEN_AFTER = 48 * 2**20
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a header describes it; ``dtype`` in safetensors' spelling (``BF16``)."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """The tensors of a folder.

    Args:
        folder: holds ``model.safetensors.index.json`` with its shards, or safetensors files.

    Raises:
        CheckpointError: a file is missing, truncated, damaged or outside the folder.
        UnsupportedError: the checkpoint is quantised.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError("checkpoint", str(folder), "a folder", "Pass the folder that holds config.json.")
        self.folder = folder
        _refuse_quantised(folder)
        index = folder / INDEX
        files = _indexed_files(index) if index.is_file() else _loose_files(folder)
        self.tensors: dict[str, TensorInfo] = {}
        for file in files:
            for name, info in _header(file).items():
                if name in self.tensors:
                    raise CheckpointError(
                        f"tensor {name}", [self.tensors[name].file.name, file.name], "each tensor in one file"
                    )
                self.tensors[name] = info
        if index.is_file():
            _compare_index(index, self.tensors)
        self._open: dict[Path, Any] = {}
        self._read = 0

    def slice(self, name: str) -> LazySlice:
        """A lazy slice of the tensor.

        Raises:
            UnsupportedError: its dtype is not a plain float.
        """
        info = self.tensors[name]
        if info.dtype not in FLOATS:
            raise UnsupportedError(
                f"tensor {name}: dtype", info.dtype, "one of " + ", ".join(FLOATS), "Quantised weights can't be read yet."
            )
        if info.file not in self._open or self._read > REOPEN_AFTER:
            self.close()
            self._open[info.file] = safe_open(info.file, framework="pt")
        return _Counted(self._open[info.file].get_slice(name), self)

    def count(self, size: int) -> None:
        """Note that so many bytes were read."""
        self._read += size

    def close(self) -> None:
        """Let go of the open files."""
        self._open.clear()
        self._read = 0


class _Counted:
    """A slice that tells the checkpoint how much was read."""

    def __init__(self, base: LazySlice, owner: Checkpoint) -> None:
        self.base, self.owner = base, owner

    def get_shape(self) -> list[int]:
        return self.base.get_shape()

    def __getitem__(self, index: Any) -> Tensor:
        part = self.base[index]
        self.owner.count(part.nbytes)
        return part


def _refuse_quantised(folder: Path) -> None:
    config = folder / "config.json"
    if not config.is_file():
        return
    try:
        settings = json.loads(config.read_text()).get("quantization_config")
    except (ValueError, AttributeError) as error:
        raise CheckpointError("config.json", str(error), "a JSON object") from None
    if settings:
        method = settings.get("quant_method", "unknown") if isinstance(settings, dict) else settings
        raise UnsupportedError(
            "quantization_config.quant_method", method, "an unquantised checkpoint", "Use the bf16 or fp32 weights."
        )


def _indexed_files(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(INDEX, str(error), "a JSON object with a weight_map") from None
    files = []
    for name in sorted(names):
        path = index.parent / str(name)
        if Path(str(name)).name != name:
            raise CheckpointError(f"{INDEX}: file", name, "a plain file name inside the folder")
        if not path.is_file():
            raise CheckpointError(f"{INDEX}: file", name, "a file in the folder", "Download the missing shard.")
        files.append(path)
    return files


def _loose_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if files:
        return files
    pickled = sorted(p.name for p in folder.glob("*.bin") if p.name.startswith("pytorch_model"))
    if pickled:
        raise CheckpointError(
            "checkpoint",
            pickled,
            "safetensors files; pickled files are never loaded",
            "Convert once: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) in transformers.",
        )
    raise CheckpointError("checkpoint", str(folder), "a folder with *.safetensors files")


def _header(file: Path) -> dict[str, TensorInfo]:
    """Names, shapes and dtypes; the declared length is held against the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER, size - 8):
            raise CheckpointError(f"{file.name}: header length", length, f"2 to {max(size - 8, 2)} bytes")
        try:
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            tensors = {n: TensorInfo(file, tuple(e["shape"]), str(e["dtype"])) for n, e in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{file.name}: header", str(error), "a safetensors header") from None
    if 8 + length + end != size:
        raise CheckpointError(
            f"{file.name}: size",
            size,
            f"{8 + length + end} bytes, as its header declares",
            "The file is truncated or damaged: download it again.",
        )
    return tensors


def _compare_index(index: Path, tensors: dict[str, TensorInfo]) -> None:
    listed = json.loads(index.read_text())["weight_map"]
    for name, file in listed.items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(f"{INDEX}: {name}", file, "the file that holds this tensor")
    extra = sorted(set(tensors) - set(listed))
    if extra:
        raise CheckpointError(INDEX, extra[:5], "every tensor of its files listed")
