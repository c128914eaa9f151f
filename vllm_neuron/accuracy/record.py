"""Frozen dataclasses to plain JSON and back, by their type hints: strict, and exact for every float.

JSON has no NaN and no infinity; they are written as the strings ``"nan"``, ``"inf"`` and ``"-inf"`` and read back in
places whose type is ``float``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from vllm_neuron.errors import ConfigError, nearest

R = TypeVar("R")
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode(value: Any) -> Any:
    """Dataclasses, tuples, mappings and scalars as what ``json`` writes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def decode(kind: type[R], value: Any, path: str = "") -> R:
    """An instance of a dataclass from what :func:`encode` made.

    Args:
        kind: the dataclass.
        value: its JSON object.
        path: where it stands, for messages.

    Raises:
        ConfigError: a key is unknown or missing, or a value is of another type.
    """
    path = path or kind.__name__
    if not isinstance(value, Mapping):
        raise ConfigError(path, value, "a JSON object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            raise ConfigError(f"{path}.{key}", value[key], f"a field of {kind.__name__}", nearest(key, fields))
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in value and not optional:
            raise ConfigError(f"{path}.{name}", None, "a value", "The file was cut or written by another version.")
    return kind(**{key: _value(hints[key], each, f"{path}.{key}") for key, each in value.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        rest = [each for each in args if each is not type(None)]
        return _value(rest[0], value, path)
    if origin is typing.Literal:
        return _checked(value in args, value, path, " or ".join(map(repr, args)))
    if origin is tuple:
        return _tuple(args, value, path)
    if origin is not None and issubclass(origin, Mapping):
        _checked(isinstance(value, Mapping), value, path, "a JSON object")
        return {key: _value(args[1], each, f"{path}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(hint):
        return decode(hint, value, path)  # type: ignore[arg-type]
    return _scalar(hint, value, path)


def _tuple(args: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    _checked(isinstance(value, list | tuple), value, path, "a JSON array")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], each, f"{path}[{i}]") for i, each in enumerate(value))
    _checked(len(value) == len(args), value, path, f"{len(args)} values")
    return tuple(_value(hint, each, f"{path}[{i}]") for i, (hint, each) in enumerate(zip(args, value, strict=True)))


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float:
        if isinstance(value, str) and value in _SPECIAL:
            return _SPECIAL[value]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(number, value, path, "a number"))
    fits = isinstance(value, hint) and not (hint is int and isinstance(value, bool))
    return _checked(fits, value, path, hint.__name__)


def _checked(fits: bool, value: Any, path: str, expected: str) -> Any:
    if not fits:
        raise ConfigError(path, value, expected)
    return value
