"""Which weights a run used, as a digest of the checkpoint's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vllm_neuron.errors import CheckpointError

# Checkpoints up to this size are read whole; of larger ones, every header and evenly spaced pieces.
WHOLE_BYTES = 4 << 30
PIECE = 1 << 20
PIECES = 256


def checkpoint_digest(folder: Path) -> str:
    """A digest of a checkpoint's weights and configuration, with the way it was made in front: ``whole:...``.

    Names and sizes of the safetensors files and ``config.json`` count always; up to 4 GiB all bytes do, above that the
    first and last mebibyte of each file and 256 evenly spaced ones (``sampled:...``).

    Raises:
        CheckpointError: no safetensors files, or they can't be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError("checkpoint", str(folder), "safetensors files")
    digest = hashlib.sha256()
    try:
        total = sum(path.stat().st_size for path in files)
        whole = total <= WHOLE_BYTES
        for path in [*files, *sorted(folder.glob("config.json"))]:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                for start, count in _pieces(size, whole or path.suffix == ".json"):
                    file.seek(start)
                    digest.update(file.read(count))
    except OSError as error:
        raise CheckpointError("checkpoint", str(error.filename), "a file that can be read", str(error)) from error
    return f"{'whole' if whole else 'sampled'}:{digest.hexdigest()}"


def _pieces(size: int, whole: bool) -> list[tuple[int, int]]:
    if whole or size <= (PIECES + 2) * PIECE:
        return [(start, PIECE) for start in range(0, size, PIECE)]
    step = (size - PIECE) // (PIECES + 1)
    return [(i * step, PIECE) for i in range(PIECES + 2)]
