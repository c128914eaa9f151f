"""Where a view goes: stdout, or a file that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

from vllm_neuron.errors import ConfigError


def put(text: str, path: Path | None, *, option: str = "--output") -> None:
    """Write ``text`` to ``path``, or to stdout when it is None; ``option`` named the path.

    Raises:
        ConfigError: the file can't be written; an older file of that name is left as it was.
    """
    if path is None:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    data = text if text.endswith("\n") else text + "\n"
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            # A pipe or a device: nothing to replace, and a folder is refused here.
            target.write_text(data, encoding="utf-8")
        else:
            _replace(target, data)
    except OSError as error:
        raise _refused(path, option, error) from None


def check(path: Path, *, option: str = "--output") -> None:
    """Try that ``path`` can be written, before the work whose result it gets; nothing is left behind.

    Raises:
        ConfigError: it can't.
    """
    target = path.resolve()
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.exists() or target.is_file():
            with tempfile.TemporaryFile(dir=target.parent):
                pass
    except OSError as error:
        raise _refused(path, option, error) from None


def _refused(path: Path, option: str, error: OSError) -> ConfigError:
    expected = f"a file that can be written ({error.strerror})"
    return ConfigError(option, str(path), expected, "Name a file in a folder that you can write to.")


def _replace(target: Path, data: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(data)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
