"""Where a view goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from vllm_neuron.errors import ConfigError


def put(text: str, path: Path | None) -> None:
    """Write ``text`` to ``path``, or to stdout when it is None.

    Raises:
        ConfigError: the file can't be written; an older file of that name is left as it was.
    """
    if path is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text if text.endswith("\n") else text + "\n")
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError("--output", str(path), f"a file that can be written ({error.strerror})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
