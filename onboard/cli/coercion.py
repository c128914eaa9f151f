"""Parameters of commands without typer's adapters where the value is of the right type already.

typer 0.29 builds a pydantic adapter for every parameter, absent ones too, and that import is a quarter of a short
command.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import typer


class Plain:
    """Coercion of one parameter: values that need no conversion pass, all others go to typer's own."""

    def __init__(self, parameter: Any) -> None:
        self.annotation = parameter.type_descriptor.annotation
        self.own = parameter.get_runtime_param

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the parameter; raises what typer raises."""
        if value is None or value.__class__ is self.annotation:
            return value
        if isinstance(self.annotation, type) and issubclass(self.annotation, Enum):
            for member in self.annotation:
                if value == member.value:
                    return member
        return self.own().coerce(value, param=param, ctx=ctx)


def without_adapters(command: Any, below: bool = True) -> None:
    """Let the parameters of ``command`` pass plain values, where this typer has adapters; ``below``: of its
    sub-commands too."""
    for parameter in command.get_params(typer.Context(command)):
        single = parameter.nargs == 1 and not parameter.multiple
        if single and hasattr(parameter, "get_runtime_param") and hasattr(parameter, "type_descriptor"):
            plain = Plain(parameter)
            parameter.get_runtime_param = lambda plain=plain: plain
    for one in getattr(command, "commands", {}).values() if below else ():
        without_adapters(one)
