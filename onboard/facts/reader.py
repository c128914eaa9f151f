"""``Reader``: typed access to one section of a config that remembers where every value came from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onboard.facts.source import Source
from onboard.facts.spellings import FAMILY_IGNORED, FAMILY_SPELLINGS, IGNORED, SPELLINGS, TOWER_KEYS
from vllm_neuron.errors import ConfigError

MAX_INT = 2**40
MAX_NUMBER = 1e30
_ABSENT = object()
RANK = {"explicit": 0, "null": 1, "derived": 2, "family": 3, "assumed": 4}


class Reader:
    """Reads the decoder's section.

    Args:
        text: the section.
        prefix: its dotted path with a trailing dot, or "".
        model_type: decides spellings.
        defaults: the family's defaults, by the modern spelling.
        top: the whole config, for the few settings that models keep outside the section.
    """

    #: Raw keys that were read, with the values that counted.
    found: dict[str, Any]

    def __init__(
        self,
        text: Mapping[str, Any],
        prefix: str = "",
        model_type: str = "",
        defaults: Mapping[str, Any] | None = None,
        top: Mapping[str, Any] | None = None,
    ) -> None:
        self.text = text
        self.prefix = prefix
        self.model_type = model_type
        self.defaults = defaults or {}
        self.top = top if top is not None else text
        self.sources: dict[str, Source] = {}
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.default_kind = "family"
        self.layer_kind = ""
        self._used: set[str] = set()
        self._overrides: dict[int, Mapping[str, Any]] = {}
        self._settled: dict[str, tuple[Any, Source]] = {}
        self._first_kind: dict[str, str] = {}
        self.found = {}
        self._own = FAMILY_SPELLINGS.get(model_type, {})

    # Finding

    def spellings(self, key: str) -> tuple[str, ...]:
        """The raw keys that may hold ``key``, the preferred one first."""
        return self._own.get(key) or SPELLINGS.get(key, (key,))

    def has(self, key: str) -> bool:
        """Whether any spelling of ``key`` is written with a value other than null."""
        return any(self._get(s) not in (_ABSENT, None) for s in self.spellings(key))

    def _get(self, spelling: str) -> Any:
        value: Any = self.text
        for part in spelling.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return _ABSENT
            value = value[part]
        return value

    def find(self, key: str, at: str | None = None) -> tuple[Any, Source]:
        """The value of ``key`` as written, None if it is written as null, else the family's default; with its source,
        which ``at`` records."""
        if key in self._settled:
            value, source = self._settled[key]
            self.record(at, source)
            return value, source
        found: list[tuple[str, Any]] = []
        for spelling in self.spellings(key):
            value = self._get(spelling)
            if value is not _ABSENT:
                self._used.add(spelling.split(".", 1)[0])
                found.append((spelling, value))
        written = [(s, v) for s, v in found if v is not None]
        if found:
            spelling = (written or found)[0][0]
            self.found[spelling] = (written or found)[0][1]
        if written:
            spelling, value = written[0]
            for other, different in written[1:]:
                if different != value:
                    self.warn(f"{other}={different!r:.60} contradicts {spelling}={value!r:.60}; {spelling} wins")
            source = Source("explicit", self.prefix + spelling)
        else:
            value = None if found else self.defaults.get(key)
            raw = self.prefix + (found[0][0] if found else self.spellings(key)[0])
            source = Source("null" if found else self.default_kind, raw)
        self.record(at, source)
        return value, source

    def record(self, at: str | None, source: Source) -> None:
        """Note where the value of the architecture path ``at`` came from.

        Of several keys that bear on one path, a written one counts most. A kind of layer that differs from the first
        one gets a path of its own (``attention.window@sliding``).
        """
        if at is None:
            return
        kind = self._first_kind.setdefault(at, self.layer_kind)
        path = at if kind in ("", self.layer_kind) else f"{at}@{self.layer_kind}"
        if path != at and self.sources[at] == source:
            return
        before = self.sources.get(path)
        if before is None or RANK[source.kind] < RANK[before.kind]:
            self.sources[path] = source

    def overrule(self, at: str, source: Source) -> None:
        """Record ``source`` for ``at`` in every kind of layer, whatever was recorded before."""
        for path in [path for path in self.sources if path.startswith(f"{at}@")]:
            del self.sources[path]
        self.sources[at] = source

    def settle(self, key: str, value: Any, why: str) -> None:
        """From now on ``key`` has ``value``, which follows from ``why`` (other keys)."""
        self.find(key)
        self._settled[key] = (value, Source("derived", why))

    def known(self, *paths: str, key: str | None = None) -> None:
        """Record values that come from knowledge of the family."""
        for path in paths:
            self.record(path, Source(self.default_kind, key))

    def record_written(self, at: str, key: str, written: bool) -> None:
        """Record a value read from inside ``key``: explicit if the config writes it, null if it writes null, else the
        family's default."""
        unwritten = "null" if self._get(key) is None else self.default_kind
        self.record(at, Source("explicit" if written else unwritten, self.prefix + key))

    def derived(self, at: str, key: str | None = None) -> None:
        """Record a value that follows from others."""
        self.record(at, Source("derived", key))

    def warn(self, text: str) -> None:
        """Add a warning once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def use(self, *keys: str) -> None:
        """Mark raw keys as understood."""
        self._used.update(keys)

    def unknown_keys(self) -> tuple[str, ...]:
        """Keys of the section that nothing has read and that are not switched off (null, false, 0 or empty)."""
        known = self._used | IGNORED | FAMILY_IGNORED.get(self.model_type, frozenset()) | TOWER_KEYS
        return tuple(sorted(str(k) for k, v in self.text.items() if k not in known and v))

    # Layers that differ

    def layer_overrides(self, layers: int) -> dict[int, int]:
        """``per_layer_config``: for each layer that has settings of its own, the index of the first layer with the
        same ones. Keys are layer numbers, possibly with leading zeros.

        Raises:
            ConfigError: not an object of objects, or a layer that does not exist or is named twice.
        """
        table = self.maybe_mapping("per_layer_config")
        out: dict[int, int] = {}
        for key, value in (table or {}).items():
            if not _is_layer(key, layers) or int(key) in out or not isinstance(value, Mapping):
                raise self.wrong("per_layer_config", {key: value}, f"a layer from 0 to {layers - 1} and an object")
            same = next((i for i, other in self._overrides.items() if other == value), int(key))
            self._overrides.setdefault(same, value)
            out[int(key)] = same
        return out

    @contextlib.contextmanager
    def layer(self, kind: str, override: int | None = None) -> Iterator[None]:
        """While open, records name this kind of layer, and ``per_layer_config`` of layer ``override`` goes first."""
        text, self.layer_kind = self.text, kind
        if override is not None:
            self.text = {**text, **self._overrides[override]}
        try:
            yield
        finally:
            self.text, self.layer_kind = text, ""

    # Typed access

    def wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        """The error for a value of ``key`` that can't be right."""
        spelling = next((s for s in self.spellings(key) if self._get(s) not in (_ABSENT, None)), self.spellings(key)[0])
        return ConfigError(self.prefix + spelling, value, expected, "Correct the config.")

    def maybe_integer(self, key: str, at: str | None = None, minimum: int = 1, maximum: int = MAX_INT) -> int | None:
        """An integer, or None when it is absent or null and the family has no default.

        Raises:
            ConfigError: not an integer, or out of range.
        """
        value, _ = self.find(key, at)
        if value is None:
            return None
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(key, value, f"an integer from {minimum} to {maximum}")
        return value

    def integer(self, key: str, at: str | None = None, minimum: int = 1, maximum: int = MAX_INT) -> int:
        """As :meth:`maybe_integer`, but needed; the family's default stands in for a null.

        Raises:
            ConfigError: also when there is no value.
        """
        value = self.maybe_integer(key, at, minimum, maximum)
        if value is None:
            value = self.defaults.get(key)
        if value is None:
            raise self.wrong(key, None, "a value")
        return value

    def maybe_decimal(self, key: str, at: str | None = None, minimum: float = -math.inf) -> float | None:
        """A finite number of at least ``minimum``, or None."""
        value, _ = self.find(key, at)
        return None if value is None else self.number(key, value, minimum)

    def number(self, key: str, value: Any, minimum: float = -math.inf) -> float:
        """``value`` as a float of sensible size.

        Raises:
            ConfigError: it is none.
        """
        if type(value) not in (int, float) or not -MAX_NUMBER <= value <= MAX_NUMBER or value < minimum:
            low = "" if minimum == -math.inf else f" of {minimum:g} or more"
            raise self.wrong(key, value, f"a finite number{low}")
        return float(value)

    def decimal(self, key: str, at: str | None = None, minimum: float = -math.inf) -> float:
        """As :meth:`maybe_decimal`, but needed."""
        value = self.maybe_decimal(key, at, minimum)
        if value is None and key in self.defaults:
            value = self.number(key, self.defaults[key], minimum)
        if value is None:
            raise self.wrong(key, None, "a value")
        return value

    def flag(self, key: str, at: str | None = None, default: bool = False) -> bool:
        """True or false; ``default`` stands in where the family states none.

        Raises:
            ConfigError: another type.
        """
        value, _ = self.find(key, at)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(key, value, "true or false")
        return value

    def maybe_text(self, key: str, at: str | None = None) -> str | None:
        """A string, or None."""
        value, _ = self.find(key, at)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def maybe_mapping(self, key: str) -> Mapping[str, Any] | None:
        """An object, or None."""
        value, _ = self.find(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
        return value

    def maybe_list(self, key: str, kind: type, at: str | None = None) -> Sequence[Any] | None:
        """A list of ``kind`` values, or None."""
        value, _ = self.find(key, at)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(x) is not kind for x in value):
            raise self.wrong(key, value, f"a list of {kind.__name__} values")
        return value


def _is_layer(key: Any, layers: int) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < layers
