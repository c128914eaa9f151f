"""The checkpoint table of a model: rows that say which checkpoint keys fill which parameters.

Names leave out the last part (``weight``, ``bias``): a row for a module serves whichever of its parameters exist. The
full name of a parameter works too, with the full name of its key. ``{i}`` stands for a layer's index, ``{e}`` for an
expert's, ``{q,k,v}`` for alternatives in that order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from vllm_neuron.errors import ConfigError, nearest
from vllm_neuron.utils.weight_loader import EXPERT_LAYOUTS, LAYOUTS

_INDEX = re.compile(r"\{([a-z])\}")
_ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")


@cache
def expand(name: str) -> tuple[str, ...]:
    """``a.{q,k}_proj`` -> ``(a.q_proj, a.k_proj)``; a name without alternatives -> itself."""
    found = _ALTERNATIVES.search(name)
    if found is None:
        return (name,)
    options = found.group(1).split(",")
    return tuple(e for o in options for e in expand(name[: found.start()] + o.strip() + name[found.end() :]))


@cache
def _regex(pattern: str, anywhere: bool = False) -> re.Pattern[str]:
    seen: set[str] = set()

    def placeholder(found: re.Match[str]) -> str:
        name = found.group(1)
        again = name in seen
        seen.add(name)
        return f"(?P={name})" if again else rf"(?P<{name}>\d+)"

    escaped = re.sub(r"\\\{([a-z])\\\}", placeholder, re.escape(pattern)).replace(r"\*", ".*")
    return re.compile(rf"(?:.*\.)?{escaped}(?:\.[^.]*)?" if anywhere else escaped)


def match(pattern: str, name: str) -> dict[str, str] | None:
    """The placeholders' values when ``name`` is an instance of ``pattern`` (no alternatives), else None."""
    found = _regex(pattern).fullmatch(name)
    return None if found is None else found.groupdict()


def fill(pattern: str, values: dict[str, str]) -> str:
    """``pattern`` with its placeholders replaced."""
    return _INDEX.sub(lambda found: values.get(found.group(1), found.group()), pattern)


def _check_placeholders(row: Map | Fuse | Split | StackExperts, params: str, extra: frozenset[str]) -> None:
    known = set(_INDEX.findall(params))
    wrong = set(_INDEX.findall(row.key)) - known - extra
    if "*" in params + row.key:
        raise ConfigError(f"{type(row).__name__}: names", (params, row.key), "no '*', which only Drop rows take")
    if wrong or (known & extra):
        expected = f"placeholders of {params!r}" + "".join(f" and {{{e}}}" for e in sorted(extra))
        raise ConfigError(f"{type(row).__name__}: key", row.key, expected)


def _check_layout(row: Map | Fuse) -> None:
    allowed = ("query_gate",) if isinstance(row, Fuse) else (*LAYOUTS, *EXPERT_LAYOUTS)
    if row.layout is not None and row.layout not in allowed:
        raise ConfigError(
            f"{type(row).__name__}: layout", row.layout, f"one of {', '.join(allowed)}", nearest(row.layout, allowed)
        )


@dataclass(frozen=True)
class Map:
    """One module, one key; with alternatives, several pairs in order (``Map("{q,k}_norm", "attn.{q,k}_norm")``).

    Attributes:
        param, key: names, see the module.
        transpose: the file has the last two dimensions swapped ([in, out] of GPT-2's Conv1D); vectors stay.
        layout: how the tensor holds queries, keys and values, one of ``LAYOUTS`` in ``utils.weight_loader``; all
            queries, all keys, all values when None. ``query_gate``: the key is a query projection that has each head's
            query, then its output gate, and the parameter is the gate. For experts: ``interleaved``, gate and up rows
            in turn; all gate rows first when None.

    Raises:
        ConfigError: unknown placeholders or layout, or sides with different numbers of alternatives.
    """

    param: str
    key: str
    transpose: bool = False
    layout: str | None = None

    def __post_init__(self) -> None:
        _check_layout(self)
        _check_placeholders(self, self.param, frozenset())
        if len(expand(self.param)) != len(expand(self.key)):
            expected = f"as many alternatives as {self.param!r}; Fuse joins several keys, Split shares one"
            raise ConfigError("Map: key", self.key, expected)


@dataclass(frozen=True)
class Fuse:
    """Several keys, joined by the parameter's own loader in the order of the alternatives.

    A parameter may take some of them alone (a bias on q and v; a layer without keys and values of its own).

    Attributes:
        param, key: names, see the module.
        transpose: see :class:`Map`.
        layout: ``query_gate``: the first key has each head's query, then its output gate.

    Raises:
        ConfigError: unknown placeholders or layout, or a key without alternatives.
    """

    param: str
    key: str
    transpose: bool = False
    layout: str | None = None

    def __post_init__(self) -> None:
        _check_layout(self)
        _check_placeholders(self, self.param, frozenset())
        if len(expand(self.key)) < 2:
            raise ConfigError("Fuse: key", self.key, "alternatives in braces, e.g. attn.{q,k,v}_proj; else use Map")


@dataclass(frozen=True)
class StackExperts:
    """One key (or several alternatives) for each expert ``{e}``, in the order expert 0's keys, expert 1's keys, ...

    Raises:
        ConfigError: unknown placeholders, or a key without ``{e}``.
    """

    param: str
    key: str

    def __post_init__(self) -> None:
        _check_placeholders(self, self.param, frozenset("e"))
        if "{e}" not in self.key:
            raise ConfigError("StackExperts: key", self.key, "a name with {e} where the expert's index stands")


@dataclass(frozen=True)
class Split:
    """One key feeds several parameters: equal parts along ``dim``, in the order of the alternatives of ``params``.

    Raises:
        ConfigError: unknown placeholders, alternatives in the key, or none in ``params``.
    """

    params: str
    key: str
    dim: int = 0

    def __post_init__(self) -> None:
        _check_placeholders(self, self.params, frozenset())
        if len(expand(self.params)) < 2:
            raise ConfigError("Split: params", self.params, "alternatives in braces, e.g. mlp.{gate,up}")
        if len(expand(self.key)) != 1 or self.dim < 0:
            raise ConfigError("Split: key, dim", (self.key, self.dim), "one key, and a dimension counted from 0")


@dataclass(frozen=True)
class Tie:
    """``param`` takes its numbers from ``to``'s keys when the flag ``when`` is set.

    The module may have a parameter of its own, which is then filled from those keys, or share ``to``'s and have none.
    Keys of its own in the file must hold the same numbers.
    """

    param: str
    to: str
    when: str


@dataclass(frozen=True)
class Drop:
    """Keys that are not needed, and why.

    ``key`` is a key, its module, or the trailing parts of either (``rotary_emb.inv_freq``); ``*`` stands for anything.
    """

    key: str
    why: str


Row = Map | Fuse | StackExperts | Split | Tie | Drop

# Buffers that some versions of transformers saved, in any model.
HARMLESS = (
    Drop("rotary_emb.inv_freq", why="derived from the config"),
    Drop("rotary_emb.{cos,sin}_cached", why="derived from the config"),
    Drop("attn.masked_bias", why="a constant of the attention mask"),
)


class Table:
    """The rows of one model's checkpoint."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows

    def ties(self) -> list[Tie]:
        """The rows that share a parameter."""
        return [row for row in self.rows if isinstance(row, Tie)]

    def drop_reason(self, key: str) -> str | None:
        """Why the key is not needed, when a row (or :data:`HARMLESS`) says so."""
        for row in (*(row for row in self.rows if isinstance(row, Drop)), *HARMLESS):
            if any(_regex(pattern, anywhere=True).fullmatch(key) for pattern in expand(row.key)):
                return row.why
        return None
