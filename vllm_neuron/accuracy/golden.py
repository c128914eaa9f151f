"""References on disk, so that they are computed once: files named by the hash of all that they depend on.

A file holds the logits of one prompt and the keys and values of each layer, as plain safetensors that are mapped, not
read: a chunk of rows costs the memory of that chunk. It is written beside its place and moved there when complete, so
a reader sees whole files only, and two processes that compute the same one do no harm. When a new file would pass the
limit, the files that were used longest ago go first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_neuron import envs
from vllm_neuron.errors import CheckpointError, ShapeError

SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_HASHES = "file-hashes.json"
# Left on the disk for everybody else.
_SPARE_BYTES = 1 << 28
# A file written within this time of its hashing may change again without a newer time stamp.
_SETTLED_SECONDS = 2.0
_ABANDONED_SECONDS = 86400.0
_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16"}


class GoldenCache:
    """A folder of references.

    Args:
        folder: ``VLLM_NEURON_GOLDEN_CACHE_DIR`` when None, else ``neuron-onboard/goldens`` in the user's cache folder.
        limit_bytes: ``VLLM_NEURON_GOLDEN_CACHE_GIB`` when None; 0 keeps nothing.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int | None = None) -> None:
        self.folder = folder or default_folder()
        self.limit_bytes = envs.VLLM_NEURON_GOLDEN_CACHE_GIB << 30 if limit_bytes is None else limit_bytes

    def path(self, key: str) -> Path:
        """Where the file of a key is, or would be."""
        return self.folder / f"{key}{SUFFIX}"

    def load(self, key: str) -> dict[str, Tensor] | None:
        """The tensors of a key, mapped from its file; None when there is none. A damaged file is removed."""
        path = self.path(key)
        try:
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get("key") != key:
                    raise SafetensorError("another key")
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        # A folder that can't be written still serves; its files just don't get younger.
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def store(
        self, key: str, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], pieces: Iterable[Tensor]
    ) -> str | None:
        """Write the file of a key.

        Args:
            key: hexadecimal digest, see :func:`digest`.
            shapes: name -> dtype and shape, in the order of the data.
            pieces: the data, in that order; a tensor may come in several pieces.

        Returns:
            None, or why it was not kept, in words: the limit, a full disk, a folder that can't be written.

        Raises:
            ShapeError: the pieces are not what the shapes say.
        """
        header, size = _header(key, shapes)
        total = size + len(header)
        if total > self.limit_bytes:
            return f"not cached: {total / 2**20:.0f} MiB are over the limit of {self.limit_bytes / 2**20:.0f} MiB"
        partial: Path | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(total)
            if shutil.disk_usage(self.folder).free < total + _SPARE_BYTES:
                return f"not cached: {total / 2**20:.0f} MiB would fill the disk of {self.folder}"
            handle, name = tempfile.mkstemp(prefix=".", suffix=_PARTIAL, dir=self.folder)
            partial = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(header)
                written = sum(file.write(_bytes(piece)) for piece in pieces)
            if written != size:
                raise ShapeError("GoldenCache.store", written, f"{size} bytes, as the shapes say")
            os.replace(partial, self.path(key))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = f"the disk of {self.folder} is full" if full else f"{self.folder}: {error.strerror}"
            return f"not cached: {why}"
        finally:
            if partial is not None:
                partial.unlink(missing_ok=True)
        return None

    def _make_room(self, wanted: int) -> None:
        """Remove abandoned partial files, then the files used longest ago until ``wanted`` bytes fit the limit."""
        now = time.time()
        for path in self.folder.glob(f".*{_PARTIAL}"):
            stat = _stat(path)
            if stat is not None and now - stat.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        known = [(path, stat) for path in self.folder.glob(f"*{SUFFIX}") if (stat := _stat(path)) is not None]
        used = sum(stat.st_size for _, stat in known)
        for path, stat in sorted(known, key=lambda each: each[1].st_mtime_ns):
            if used + wanted <= self.limit_bytes:
                break
            path.unlink(missing_ok=True)
            used -= stat.st_size

    def weights_id(self, folder: Path) -> str:
        """A hash of a checkpoint: every byte of its safetensors files, and its config.

        Samples would be faster and wrong for a fine-tune that moves few tensors. What is saved instead is hashing the
        same file twice: the hash of a file is remembered with its path, size, inode and times of change, as build tools
        do, unless it was changed within the last two seconds. Copying tools set the time of modification back; the
        inode's own time of change they can't.

        Raises:
            CheckpointError: the folder has no safetensors files, or they can't be read.
        """
        files = sorted(folder.glob(f"*{SUFFIX}"))
        if not files:
            raise CheckpointError(str(folder), "no safetensors file", "a checkpoint folder with *.safetensors")
        known = self._known_hashes()
        parts: dict[str, str] = {}
        fresh = dict(known)
        try:
            for file in files:
                parts[file.name], fresh[str(file.resolve())] = _file_hash(file, known.get(str(file.resolve())))
            config = json.loads((folder / "config.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(str(folder), str(error), "readable weights and config.json") from None
        if fresh != known and self.limit_bytes:
            self._remember(fresh)
        return digest({"files": parts, "config": config})

    def _known_hashes(self) -> dict[str, list[Any]]:
        try:
            known = json.loads((self.folder / _HASHES).read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _remember(self, hashes: Mapping[str, list[Any]]) -> None:
        """Write the hashes of files; they are only a saving, so a folder that can't be written does not matter."""
        kept = {path: entry for path, entry in hashes.items() if Path(path).is_file() and entry}
        partial: Path | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=".", suffix=_PARTIAL, dir=self.folder)
            partial = Path(name)
            with os.fdopen(handle, "w") as file:
                json.dump(kept, file)
            os.replace(partial, self.folder / _HASHES)
        except OSError:
            return
        finally:
            if partial is not None:
                partial.unlink(missing_ok=True)


def default_folder() -> Path:
    """Where references are kept when nobody says."""
    named = envs.VLLM_NEURON_GOLDEN_CACHE_DIR
    if named:
        return Path(named).expanduser()
    base = envs.foreign("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "neuron-onboard" / "goldens"


def digest(content: Any) -> str:
    """SHA-256 of JSON content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _file_hash(file: Path, known: list[Any] | None) -> tuple[str, list[Any]]:
    """Hash of a file, and what to remember of it (empty while it is too new)."""
    stat = file.stat()
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    if known and known[:-1] == state:
        return str(known[-1]), known
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    return found, [*state, found] if time.time() - stat.st_mtime > _SETTLED_SECONDS else []


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _header(key: str, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The safetensors header of some tensors that lie one behind the other, and the size of their data."""
    entries: dict[str, Any] = {"__metadata__": {"key": key}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + dtype.itemsize * torch.Size(shape).numel()
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def _bytes(piece: Tensor) -> memoryview:
    return piece.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
