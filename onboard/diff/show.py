"""Values of an architecture as JSON scalars, and as short text for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from onboard.arch.blocks import Norm, QKNorm


def jsonable(value: Any) -> Any:
    """A scalar that JSON holds: parts become a line of text, sequences too; an object stays layer kind -> scalar."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if dataclasses.is_dataclass(value):
        return describe(value)
    if isinstance(value, list | tuple):
        return ", ".join(exact(v) for v in value) or "none"
    return value


def describe(part: Any) -> str:
    """A part in one line: its kind, then every field that is not at its default."""
    if isinstance(part, Norm):
        return _norm(part)
    if isinstance(part, QKNorm):
        words = {"head": "per head", "full": "over all heads", "each_head": "own weight per head"}
        width = words.get(part.width, part.width)
        other = f"; queries: {_norm(part.query_norm)}" if part.query_norm is not None else ""
        return f"{_norm(part.norm)} {width}, {part.place.replace('_', ' ')}{other}"
    head = getattr(part, "kind", None) or type(part).__name__
    fields = []
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if f.name == "kind" or (f.default is not dataclasses.MISSING and value == f.default):
            continue
        name = f.name.replace("_", " ")
        if f.name == "router" and dataclasses.is_dataclass(value):
            fields.append(_router(value))
        elif value is True:
            fields.append(name)
        elif dataclasses.is_dataclass(value):
            fields.append(f"{name} ({describe(value)})")
        else:
            fields.append(f"{name} {exact(value)}")
    return f"{head}: {', '.join(fields)}" if fields else head


def _router(router: Any) -> str:
    shown = describe(dataclasses.replace(router, score="softmax"))
    return f"{router.score} router" + (f" ({shown.partition(': ')[2]})" if ": " in shown else "")


def _norm(norm: Norm) -> str:
    words = ["RMS norm" if norm.kind == "rms" else f"{norm.kind} norm"]
    words += ["times 1 + w"] * norm.plus_one + ["with bias"] * norm.bias + ["without weight"] * (not norm.weight)
    words += ["gated"] * norm.gated + ([f"in {norm.groups} groups"] if norm.groups != 1 else [])
    eps = "" if norm.eps is None else f" (eps {norm.eps:g})"
    return " ".join(words) + eps


def text(value: Any) -> str:
    """A JSON value as a person reads it: ``none``, ``yes``, ``1000000``, ``1024 on sliding, none on full``."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{text(v)} on {k}" for k, v in value.items())
    return str(value)


def exact(value: Any) -> str:
    """As :func:`text`, with every digit of a number."""
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        return repr(value)
    return text(jsonable(value))


def count(n: int | None) -> str:
    """A large number with three digits and a unit: ``8.03 B``."""
    if n is None:
        return "unknown"
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}" if n < 1000 * size else f"{n / size:.0f} {unit}"
    return str(n)


def binary(n: int) -> str:
    """Bytes with a binary unit: ``128 KiB``; exact when it fits three digits."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n} B"
