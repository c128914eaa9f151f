"""A checkpoint folder: checked as a whole before anything is read, and read by slices."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from vllm_neuron.errors import CheckpointError, UnsupportedError
from vllm_neuron.model.loading.folder import INDEX, checkpoint_files, read_index, refuse_quantised
from vllm_neuron.model.loading.safetensors_file import FLOATS, FileSlice, SafetensorsReader, TensorInfo, read_header


class Checkpoint:
    """The tensors of a folder. Opening it reads the headers; use it in a ``with`` block, or close it.

    Args:
        folder: holds ``model.safetensors.index.json`` with its shards, or ``model.safetensors``, or several
            safetensors files.

    Attributes:
        folder: the folder.
        tensors: name -> what the header says.

    Raises:
        CheckpointError: a file is missing, truncated, damaged or outside the folder; a tensor is in two files.
        UnsupportedError: the checkpoint is quantised.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder)
        files = checkpoint_files(self.folder, index)
        self.tensors: dict[str, TensorInfo] = {}
        for file in files:
            for name, info in read_header(file).items():
                if name in self.tensors:
                    both = f"{self.tensors[name].file.name} and {file.name}"
                    raise CheckpointError(f"checkpoint: tensor {name}", both, "each tensor in one file")
                self.tensors[name] = info
        if index is not None:
            _compare_index(index, self.tensors)
        refuse_quantised(self.folder, self.tensors)
        self._readers = {file: SafetensorsReader(file) for file in files}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the open files."""
        for reader in self._readers.values():
            reader.close()

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that were read so far."""
        return sum(reader.bytes_read for reader in self._readers.values())

    def dtype(self, name: str) -> torch.dtype:
        """The tensor's dtype in the file.

        Raises:
            UnsupportedError: not a float.
        """
        found = self.tensors[name].dtype
        if found not in FLOATS:
            raise UnsupportedError(f"tensor {name}: dtype", found, "one of " + ", ".join(FLOATS))
        return FLOATS[found]

    def slice(self, name: str, dtype: torch.dtype | None = None) -> FileSlice:
        """A lazy slice of the tensor, cast to ``dtype`` as it is read.

        Raises:
            UnsupportedError: its dtype in the file is not a float.
        """
        self.dtype(name)
        info = self.tensors[name]
        return FileSlice(info, self._readers[info.file], dtype)


def _compare_index(index: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    for name, file in index.items():
        if name not in tensors:
            raise CheckpointError(f"{INDEX}: {name}", file, "a file that holds this tensor; none of the shards does")
        if tensors[name].file.name != file:
            raise CheckpointError(f"{INDEX}: {name}", file, f"{tensors[name].file.name}, the file that holds it")
    extra = sorted(set(tensors) - set(index))
    if extra:
        shown = ", ".join(extra[:5]) + (f" and {len(extra) - 5} more" if len(extra) > 5 else "")
        raise CheckpointError(f"{INDEX}: unlisted tensors", shown, "every tensor of its shards listed")
