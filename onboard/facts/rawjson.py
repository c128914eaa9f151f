"""Reading a ``config.json`` that may be anything: bounded, strict about what is ambiguous, never a traceback."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from vllm_neuron.errors import ConfigError

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 40


def read(path: Path) -> dict[str, Any]:
    """The object in one JSON file.

    ``NaN`` and ``Infinity`` are let through, since real configs hold them in fields that no architecture depends on;
    a reader of such a field refuses them.

    Raises:
        ConfigError: unreadable, larger than 8 MiB, not UTF-8, not JSON, nested too deeply, a key written twice with
            different values, or not an object.
    """
    try:
        status = path.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise ConfigError(str(path), "no regular file", "a file", "A pipe or a device is not read: save it first.")
        size = status.st_size
        if size > MAX_BYTES:
            raise ConfigError(str(path), f"{size} bytes", f"at most {MAX_BYTES} bytes", "This is not a model's config.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(str(path), error.strerror or type(error).__name__, "a readable file") from None
    return parse(data, str(path))


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The object in ``data``; ``name`` stands for the file in errors.

    Raises:
        ConfigError: as :func:`read`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(name, f"byte {error.start}: {data[error.start]:#04x}", "UTF-8 text") from None
    try:
        value = json.loads(text, object_pairs_hook=_pairs)
    except json.JSONDecodeError as error:
        shown = text[max(0, error.pos - 20) : error.pos + 20]
        raise ConfigError(f"{name} line {error.lineno}", shown, f"JSON ({error.msg})") from None
    except RecursionError:
        raise ConfigError(name, "nesting beyond what the parser allows", f"at most {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise ConfigError(name, str(error)[:80], "numbers of a sensible length") from None
    if not isinstance(value, dict):
        raise ConfigError(name, type(value).__name__, "a JSON object", "A config.json holds one object.")
    _check_depth(value, name)
    if "\\ud" in text.lower():
        _check_unicode(value, name)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen and seen[key] != value:
                raise ConfigError(key, value, f"one value (written before as {seen[key]!r:.60})", "Remove one of them.")
            seen[key] = value
    return out


def _check_depth(value: Any, name: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ConfigError(name, f"more than {MAX_DEPTH} levels", f"at most {MAX_DEPTH} levels of nesting")
        below: list[Any] = []
        for item in level:
            inner = item.values() if isinstance(item, dict) else item
            below += [x for x in inner if isinstance(x, (dict, list))]
        level = below


def _check_unicode(value: Any, name: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(name, ascii(error.object[error.start : error.end]), "valid Unicode text") from None
