"""Room for the logits of one prompt: in memory, or in a file when they are many."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

# 256 MiB: 256 positions of a 262,144-word vocabulary.
IN_MEMORY = 1 << 28


class LogitsBuffer:
    """float32 [T, V], filled from the front.

    Args:
        positions, vocab_size: T and V.
        scratch: folder of the file; the system's own by default. The file has no name once it is open, so it goes when
            the tensor goes.
    """

    def __init__(self, positions: int, vocab_size: int, scratch: Path | None = None) -> None:
        self.first: int | None = None
        self.rows = 0
        if positions * vocab_size * 4 <= IN_MEMORY:
            self._all_TV = torch.empty(positions, vocab_size)
            return
        with tempfile.NamedTemporaryFile(prefix="logits-", dir=scratch) as file:
            file.truncate(positions * vocab_size * 4)
            flat = torch.from_file(file.name, shared=True, size=positions * vocab_size, dtype=torch.float32)
        self._all_TV = flat.view(positions, vocab_size)

    def write(self, position: int, rows_RV: Tensor) -> None:
        """Put rows behind those that were written; ``position`` is that of the first."""
        if self.first is None:
            self.first = position
        assert position == self.first + self.rows
        self._all_TV[self.rows : self.rows + rows_RV.shape[0]] = rows_RV
        self.rows += rows_RV.shape[0]

    def filled(self) -> Tensor:
        """The rows written so far."""
        return self._all_TV[: self.rows]
