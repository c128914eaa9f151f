"""JSON in and out for the architecture's dataclasses: strict, and without parts that are at their default."""

from __future__ import annotations

import dataclasses
import itertools
import math
import types
import typing
from functools import cache
from typing import Any

from onboard.arch.spec import ArchSpec
from vllm_neuron.errors import ConfigError, nearest

MAX_LAYERS = 100_000


def encode(arch: ArchSpec) -> dict[str, Any]:
    """``arch`` as JSON values (see :meth:`ArchSpec.to_json`)."""
    out = _encode(arch)
    out["layer_kinds"] = [[len(list(run)), kind] for kind, run in itertools.groupby(arch.layer_kinds)]
    return out


def decode(value: Any) -> ArchSpec:
    """The inverse of :func:`encode`.

    Raises:
        ConfigError: naming the path of the first wrong value.
    """
    if isinstance(value, dict) and "layer_kinds" in value:
        value = {**value, "layer_kinds": _expand(value["layer_kinds"])}
    arch = _decode(ArchSpec, value, "arch")
    for index, kind in enumerate(arch.layer_kinds):
        if not 0 <= kind < len(arch.kinds):
            raise ConfigError(f"arch.layer_kinds[{index}]", kind, f"an index into {len(arch.kinds)} kinds")
    return arch


def _expand(runs: Any) -> list[Any]:
    out: list[Any] = []
    if not isinstance(runs, list):
        raise ConfigError("arch.layer_kinds", runs, "a list of [count, kind] pairs")
    for run in runs:
        if not (isinstance(run, list) and len(run) == 2 and all(type(x) is int for x in run) and run[0] > 0):
            raise ConfigError("arch.layer_kinds", run, "a pair [count, kind] of integers, count 1 or more")
        if len(out) + run[0] > MAX_LAYERS:
            raise ConfigError("arch.layer_kinds", run, f"at most {MAX_LAYERS} layers in all")
        out += [run[1]] * run[0]
    return out


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            f.name: _encode(item)
            for f in dataclasses.fields(value)
            if not _is_default(f, item := getattr(value, f.name))
        }
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _is_default(f: dataclasses.Field[Any], value: Any) -> bool:
    return f.default is not dataclasses.MISSING and type(f.default) is type(value) and f.default == value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any, path: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return _decode(inner, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(path, value, "a list")
        inner = typing.get_args(hint)[0]
        return tuple(_decode(inner, item, f"{path}[{i}]") for i, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _decode_object(typing.cast(type, hint), value, path)
    return _scalar(hint, value, path)


def _decode_object(cls: type, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(path, value, f"an object with the fields of {cls.__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in value:
        if key not in fields:
            raise ConfigError(f"{path}.{key}", value[key], f"a field of {cls.__name__}", nearest(str(key), fields))
    for name, f in fields.items():
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{path}.{name}", None, "a value", f"{cls.__name__} can't do without it.")
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], item, f"{path}.{name}") for name, item in value.items()})


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if hint is not float and type(value) is hint:
        return value
    words = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string"}
    raise ConfigError(path, value, words.get(hint, str(hint)))
