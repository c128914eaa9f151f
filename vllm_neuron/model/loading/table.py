"""The checkpoint table of a model: rows that say which checkpoint keys fill which parameters.

Names leave out the last part (``weight``, ``bias``): a row for a module serves whichever of its parameters exist. A name
that is a parameter's full name works too. ``{i}`` stands for a layer's index, ``{e}`` for an expert's, ``{q,k,v}`` for
alternatives in that order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_neuron.errors import ConfigError

_INDEX = re.compile(r"\\\{([a-z])\\\}")
_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def expand(name: str) -> list[str]:
    """``a.{q,k}_proj`` -> ``[a.q_proj, a.k_proj]``; a name without alternatives -> itself."""
    found = _ALTERNATIVES.search(name)
    if found is None:
        return [name]
    options = found.group(1).split(",")
    return [e for o in options for e in expand(name[: found.start()] + o.strip() + name[found.end() :])]


def match(pattern: str, name: str) -> dict[str, str] | None:
    """The placeholders' values when ``name`` is an instance of ``pattern`` (no alternatives), else None."""
    regex = _INDEX.sub(r"(?P<\1>\\d+)", re.escape(pattern))
    found = re.fullmatch(regex, name)
    return None if found is None else found.groupdict()


def fill(pattern: str, values: dict[str, str]) -> str:
    """``pattern`` with its placeholders replaced."""
    for name, value in values.items():
        pattern = pattern.replace("{" + name + "}", value)
    return pattern


@dataclass(frozen=True)
class Map:
    """One module, one key."""

    param: str
    key: str


@dataclass(frozen=True)
class Fuse:
    """Several keys, joined by the parameter's own loader in the order of the alternatives."""

    param: str
    key: str


@dataclass(frozen=True)
class StackExperts:
    """One key (or several alternatives) for each expert ``{e}``, in the order expert 0's keys, expert 1's keys, ..."""

    param: str
    key: str

    def __post_init__(self) -> None:
        if "{e}" not in self.key:
            raise ConfigError("StackExperts.key", self.key, "a name with {e} where the expert's index stands")


@dataclass(frozen=True)
class Split:
    """One key feeds several parameters: equal parts along ``dim``, in the order of the alternatives of ``params``."""

    params: str
    key: str
    dim: int = 0

    def __post_init__(self) -> None:
        if len(expand(self.params)) < 2:
            raise ConfigError("Split.params", self.params, "alternatives in braces, e.g. mlp.{gate,up}")


@dataclass(frozen=True)
class Tie:
    """``param`` has no weight of its own but shares ``to``'s, when the flag ``when`` is set."""

    param: str
    to: str
    when: str


@dataclass(frozen=True)
class Drop:
    """Keys that are not needed, and why."""

    key: str
    why: str


Row = Map | Fuse | StackExperts | Split | Tie | Drop


class Table:
    """The rows of one model's checkpoint."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows

    def ties(self) -> list[Tie]:
        """The rows that share a parameter."""
        return [row for row in self.rows if isinstance(row, Tie)]

    def drops(self) -> list[Drop]:
        """The rows that leave a key out."""
        return [row for row in self.rows if isinstance(row, Drop)]

    def drop_reason(self, key: str) -> str | None:
        """Why the key is not needed, when a row says so."""
        module = key.rpartition(".")[0]
        for row in self.drops():
            if any(match(p, key) is not None or match(p, module) is not None for p in expand(row.key)):
                return row.why
        return None
