"""``nl.NKIObject``: the base of configuration objects that kernels hand around."""

from __future__ import annotations

import inspect
from dataclasses import MISSING
from typing import Any


class NKIObject:
    """Base class with a lenient keyword constructor.

    Subclasses take any of their attributes by keyword, annotated or not, and may leave out required ones, also when a
    ``@dataclass`` decorator stands above them: public kernels rely on it. An unknown keyword is an error.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A dataclass decorator keeps an __init__ that the class itself has.
        if "__init__" not in cls.__dict__:
            cls.__init__ = _construct  # type: ignore[method-assign]


def _construct(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    fields: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base in (object, NKIObject):
            continue
        fields.update(dict.fromkeys(inspect.get_annotations(base)))
        fields.update({k: v for k, v in base.__dict__.items() if not k.startswith("__") and not callable(v)})
    names = list(fields)
    if len(args) > len(names):
        raise TypeError(f"{cls.__name__} takes at most {len(names)} values, got {len(args)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in fields and not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} has no attribute {name!r}; known: {', '.join(names)}")
        values[name] = value
    for name, made in getattr(cls, "__dataclass_fields__", {}).items():
        if name not in values and made.default_factory is not MISSING:
            values[name] = made.default_factory()
    for name, value in values.items():
        object.__setattr__(self, name, value)
    post = getattr(self, "__post_init__", None)
    if post is not None:
        post()
