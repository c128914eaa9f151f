"""Find the expression over a config's fields that gives a value in every example: the config of the model at hand, its
tiny twin, and variants of that. A value is bound to a field only when all examples agree; it is never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

Evaluate = Callable[[Mapping[str, Any], int], Any]
NUMBERS = (int, float)
MAX_NAMES = 400


@dataclass(frozen=True)
class Example:
    """One config (``env``: field -> value) and one of its layers (0 for what belongs to the whole model)."""

    env: Mapping[str, Any]
    layer: int
    layers: int


@dataclass(frozen=True)
class Expression:
    """Python text over ``c`` (the config) and ``i`` (the layer), and the fields that it reads."""

    text: str
    fields: tuple[str, ...] = ()
    per_layer: bool = False
    atom: bool = True

    @property
    def inner(self) -> str:
        """The text as an operand."""
        return self.text if self.atom else f"({self.text})"


@dataclass(frozen=True)
class Candidate:
    """An expression with what it evaluates to."""

    expression: Expression
    evaluate: Evaluate


def same(a: Any, b: Any) -> bool:
    """Equal, with a boolean unlike a number and floats equal to 12 digits."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=0.0)
    return type(a) is type(b) and bool(a == b)


def literal(value: Any) -> Expression:
    """The value itself; text is always quoted."""
    return Expression(repr(value))


class Search:
    """Expressions over a fixed list of examples.

    Args:
        names: fields that may be used, the best known first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)[:MAX_NAMES]

    @cached_property
    def plain(self) -> tuple[Candidate, ...]:
        """``c.name`` for every field."""
        return tuple(_field(name) for name in self.names)

    def value(self, examples: Sequence[Example], targets: Sequence[Any], hints: Sequence[str]) -> Expression | None:
        """The simplest expression without a condition, or None.

        Args:
            examples: where it must hold.
            targets: its value in each.
            hints: fields that are known to decide the value; they are tried first.
        """
        hints = [h for h in hints if h in self.names]
        constant = all(same(t, targets[0]) for t in targets)
        trivial = targets[0] is None or isinstance(targets[0], bool | str)
        for group in (_direct(hints), _powers(hints)):
            found = _first(group, examples, targets)
            if found is not None:
                return found
        if constant and (trivial or not hints):
            return literal(targets[0])
        if not trivial:
            for group in (_direct(self.names), _pairs(hints, self.names), _powers(self.names), _sums(self.names)):
                found = _first(group, examples, targets)
                if found is not None:
                    return found
        return literal(targets[0]) if constant else None

    def predicates(self, examples: Sequence[Example]) -> Iterator[tuple[Expression, tuple[bool, ...]]]:
        """Conditions that hold in some examples and not in others, the simplest first, each partition once."""
        seen: set[tuple[bool, ...]] = set()
        for candidate in _conditions(self.names, examples):
            truth = _truth(candidate, examples)
            if truth is None or all(truth) or not any(truth) or truth in seen:
                continue
            seen.add(truth)
            yield candidate.expression, truth


def _first(group: Iterator[Candidate], examples: Sequence[Example], targets: Sequence[Any]) -> Expression | None:
    return next((c.expression for c in group if _holds(c, examples, targets)), None)


def _holds(candidate: Candidate, examples: Sequence[Example], targets: Sequence[Any]) -> bool:
    try:
        return all(
            same(candidate.evaluate(e.env, e.layer), target) for e, target in zip(examples, targets, strict=True)
        )
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False


def _truth(candidate: Candidate, examples: Sequence[Example]) -> tuple[bool, ...] | None:
    try:
        return tuple(bool(candidate.evaluate(e.env, e.layer)) for e in examples)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def field_name(name: str) -> str:
    """The config class's field for a (possibly nested) key."""
    return name.rsplit(".", 1)[-1]


def _field(name: str) -> Candidate:
    return Candidate(Expression(f"c.{field_name(name)}", (name,)), lambda env, i: env[name])


def _direct(names: Sequence[str]) -> Iterator[Candidate]:
    for name in names:
        yield _field(name)
        yield Candidate(
            Expression(f"c.{field_name(name)}[i]", (name,), per_layer=True), lambda env, i, n=name: _item(env[n], i)
        )


def _item(values: Any, i: int) -> Any:
    if not isinstance(values, list | tuple):
        raise TypeError
    return values[i]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise TypeError
    return value


def _powers(names: Sequence[str]) -> Iterator[Candidate]:
    for name in names:
        text = f"c.{field_name(name)}"
        yield Candidate(Expression(f"{text}**-0.5", (name,), atom=False), lambda e, i, n=name: _number(e[n]) ** -0.5)
        yield Candidate(Expression(f"{text}**0.5", (name,), atom=False), lambda e, i, n=name: _number(e[n]) ** 0.5)
        yield Candidate(Expression(f"1.0 / {text}", (name,), atom=False), lambda e, i, n=name: 1.0 / _number(e[n]))
        yield Candidate(Expression(f"{text} or None", (name,), atom=False), lambda e, i, n=name: e[n] or None)
        for offset in (1, 2, 4, 8, -1, -2):
            yield Candidate(
                Expression(f"{text} {'+' if offset > 0 else '-'} {abs(offset)}", (name,), atom=False),
                lambda e, i, n=name, o=offset: _number(e[n]) + o,
            )
        for factor in (2, 3, 4):
            yield Candidate(
                Expression(f"{factor} * {text}", (name,), atom=False),
                lambda e, i, n=name, f=factor: f * _number(e[n]),
            )


def _pairs(hints: Sequence[str], names: Sequence[str]) -> Iterator[Candidate]:
    """Products, quotients and the like of a hinted field with any other."""
    operations: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
        ("{} // {}", lambda a, b: a // b),
        ("{} * {}", lambda a, b: a * b),
        ("{} + {}", lambda a, b: a + b),
        ("{} / {}", lambda a, b: a / b),
        ("{} - {}", lambda a, b: a - b),
        ("int({} * {})", lambda a, b: int(a * b)),
        ("{} / {}**0.5", lambda a, b: a / b**0.5),
        ("({} + {})**-0.5", lambda a, b: (a + b) ** -0.5),
        ("({} // {})**-0.5", lambda a, b: (a // b) ** -0.5),
        ("{} * {}**-0.5", lambda a, b: a * b**-0.5),
    )
    for (pattern, operation), first, second in product(operations, hints, names):
        for a, b in ((first, second), (second, first)):
            yield Candidate(
                Expression(pattern.format(f"c.{field_name(a)}", f"c.{field_name(b)}"), (a, b), atom=False),
                lambda e, i, a=a, b=b, f=operation: f(_number(e[a]), _number(e[b])),
            )


SIZES = ("hidden_size", "num_attention_heads", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _sums(names: Sequence[str]) -> Iterator[Candidate]:
    yield from _pairs([n for n in names if n in SIZES], [n for n in names if n in SIZES])


def _conditions(names: Sequence[str], examples: Sequence[Example]) -> Iterator[Candidate]:
    first = examples[0].env
    lists = [n for n in names if isinstance(first.get(n), list | tuple)]
    flags = [n for n in names if any(isinstance(e.env.get(n), bool) for e in examples)]
    counts = [n for n in names if any(_is_count(e.env.get(n)) for e in examples)]
    for name in lists:
        yield from _of_list(name, examples)
    for name in flags:
        yield Candidate(Expression(f"c.{field_name(name)}", (name,)), lambda e, i, n=name: e[n])
    for name in counts:
        yield from _of_count(name)
    for name in names:
        text = Expression(f"c.{field_name(name)} is not None", (name,), atom=False)
        yield Candidate(text, lambda e, i, n=name: e[n] is not None)
        yield Candidate(Expression(f"c.{field_name(name)}", (name,)), lambda e, i, n=name: bool(_number(e[n] or 0)))
    for name in names:
        for value in sorted({e.env[name] for e in examples if isinstance(e.env.get(name), str)}):
            text = Expression(f"c.{field_name(name)} == {value!r}", (name,), atom=False)
            yield Candidate(text, lambda e, i, n=name, v=value: e[n] == v)
    for flag, name in product(flags, lists + counts):
        parts = _of_list(name, examples) if name in lists else _of_count(name)
        for part in parts:
            yield Candidate(
                Expression(
                    f"c.{field_name(flag)} and {part.expression.inner}",
                    (flag, *part.expression.fields),
                    part.expression.per_layer,
                    atom=False,
                ),
                lambda e, i, f=flag, p=part: bool(e[f]) and p.evaluate(e, i),
            )
    for a, b in product(counts, counts):
        yield Candidate(
            Expression(f"i % c.{field_name(a)} == c.{field_name(b)}", (a, b), per_layer=True, atom=False),
            lambda e, i, a=a, b=b: i % e[a] == e[b],
        )
        yield Candidate(
            Expression(f"i >= c.{field_name(a)} and i % c.{field_name(b)} == 0", (a, b), per_layer=True, atom=False),
            lambda e, i, a=a, b=b: i >= e[a] and i % e[b] == 0,
        )
        yield Candidate(
            Expression(f"i >= c.{field_name(a)} - c.{field_name(b)}", (a, b), per_layer=True, atom=False),
            lambda e, i, a=a, b=b: i >= e[a] - e[b],
        )
    for name, a in product(lists, counts):
        yield Candidate(
            Expression(
                f"i not in c.{field_name(name)} and (i + 1) % c.{field_name(a)} == 0",
                (name, a),
                per_layer=True,
                atom=False,
            ),
            lambda e, i, n=name, a=a: i not in e[n] and (i + 1) % e[a] == 0,
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _of_list(name: str, examples: Sequence[Example]) -> Iterator[Candidate]:
    text = f"c.{field_name(name)}"
    values = {v for e in examples for v in (e.env.get(name) or ()) if isinstance(v, str | int)}
    strings = sorted(v for v in values if isinstance(v, str))
    for value in strings:
        yield Candidate(
            Expression(f"{text}[i] == {value!r}", (name,), per_layer=True, atom=False),
            lambda e, i, n=name, v=value: _item(e[n], i) == v,
        )
    if values and not strings:
        yield Candidate(Expression(f"{text}[i]", (name,), per_layer=True), lambda e, i, n=name: _item(e[n], i))
        yield Candidate(Expression(f"i in {text}", (name,), per_layer=True, atom=False), lambda e, i, n=name: i in e[n])


def _of_count(name: str) -> Iterator[Candidate]:
    text = f"c.{field_name(name)}"
    yield Candidate(Expression(f"i < {text}", (name,), per_layer=True, atom=False), lambda e, i, n=name: i < e[n])
    yield Candidate(
        Expression(f"(i + 1) % {text} == 0", (name,), per_layer=True, atom=False),
        lambda e, i, n=name: (i + 1) % e[n] == 0,
    )
    yield Candidate(
        Expression(f"i % {text} == 0", (name,), per_layer=True, atom=False), lambda e, i, n=name: i % e[n] == 0
    )
