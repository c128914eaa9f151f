"""Find the expression over a config's fields that gives a value in every example: the config of the model at hand, its
tiny twin, and variants of that. A value is bound to a field only when all examples agree; it is never guessed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import Any

Evaluate = Callable[[Mapping[str, Any], int], Any]
NUMBERS = (int, float)
MAX_NAMES = 400


@dataclass(frozen=True)
class Example:
    """One config (``env``: field -> value) and one of its layers (0 for what belongs to the whole model); ``twin``: the
    config's name, ``given`` for the model at hand."""

    env: Mapping[str, Any]
    layer: int
    layers: int
    twin: str = ""


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

    @property
    def clause(self) -> str:
        """The text as a part of ``a and b``."""
        joined = any(f" {word} " in self.text for word in ("and", "or", "if"))
        return f"({self.text})" if joined else self.text


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
        for group in (_direct(hints), _pairs(hints, hints), _powers(hints)):
            found = _first(group, examples, targets)
            if found is not None:
                return found
        if constant and (trivial or targets[0] in (0, 1) or _well_seen(examples)):
            # Fields that nothing ties to the value may hold the same number by chance.
            return literal(targets[0])
        if not trivial:
            for group in (_direct(self.names), _pairs(hints, self.names), _powers(self.names), _sums(self.names)):
                found = _first(group, examples, targets)
                if found is not None:
                    return found
        return None

    def predicates(
        self, examples: Sequence[Example], layered: bool = True, hints: Sequence[str] = ()
    ) -> Iterator[tuple[Expression, tuple[bool, ...]]]:
        """Conditions that hold in some examples and not in others, the simplest first, each partition once.

        Args:
            examples: where they are looked at.
            layered: the layer's index may be read.
            hints: fields that are known to decide; conditions over them come first, switches before numbers.
        """
        seen: set[tuple[bool, ...]] = set()
        known = [h for h in dict.fromkeys(hints) if h in self.names]
        known.sort(key=lambda h: not all(isinstance(e.env[h], bool | str) for e in examples))
        hinted = chain.from_iterable(_conditions([h], examples) for h in known)
        for candidate in chain(hinted, _conditions(self.names, examples)):
            if candidate.expression.per_layer and not layered:
                continue
            truth = _truth(candidate, examples)
            if truth is None or all(truth) or not any(truth) or truth in seen:
                continue
            seen.add(truth)
            yield candidate.expression, truth


def _well_seen(examples: Sequence[Example]) -> bool:
    """Whether a number that is the same in all of these is a constant of the family, not a size of one config."""
    names = {e.twin for e in examples}
    return (len(names) == 1 and "" in names) or (len(names) > 1 and "given" in names)


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
    """The config class's field for a key; ``attn_config.clip_qkv`` is ``attn_config_clip_qkv``, unlike any other."""
    return name.replace(".", "_")


def _field(name: str) -> Candidate:
    return Candidate(Expression(f"c.{field_name(name)}", (name,)), lambda env, i: env[name])


def _direct(names: Sequence[str]) -> Iterator[Candidate]:
    for name in names:
        yield _field(name)
        yield _layered(name)


def _layered(name: str) -> Candidate:
    return Candidate(
        Expression(f"c.{field_name(name)}[i]", (name,), per_layer=True), lambda env, i: _item(env[name], i)
    )


def _one(name: str, pattern: str, function: Callable[[Any], Any]) -> Candidate:
    """A function of a field's value; ``{}`` stands for the field."""
    text = pattern.format(f"c.{field_name(name)}")
    return Candidate(Expression(text, (name,), atom=False), lambda env, i: function(env[name]))


def _two(a: str, b: str, pattern: str, function: Callable[[Any, Any], Any]) -> Candidate:
    """A function of two fields' numbers."""
    text = pattern.format(f"c.{field_name(a)}", f"c.{field_name(b)}")
    return Candidate(Expression(text, (a, b), atom=False), lambda env, i: function(_number(env[a]), _number(env[b])))


def _by_layer(names: Sequence[str], pattern: str, function: Callable[..., Any]) -> Candidate:
    """A function of the layer's index and the values of fields."""
    text = pattern.format(*(f"c.{field_name(name)}" for name in names))
    return Candidate(
        Expression(text, tuple(names), per_layer=True, atom=False), lambda env, i: function(i, *(env[n] for n in names))
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
        yield _one(name, "{}**-0.5", lambda x: _number(x) ** -0.5)
        yield _one(name, "{}**0.5", lambda x: _number(x) ** 0.5)
        yield _one(name, "1.0 / {}", lambda x: 1.0 / _number(x))
        yield _one(name, "{} or None", lambda x: x or None)
        for offset in (1, 2, 4, 8, -1, -2):
            yield _shifted(name, offset)
        for factor in (2, 3, 4):
            yield _one(name, f"{factor} * {{}}", partial(_times, factor))


def _shifted(name: str, offset: int) -> Candidate:
    sign = "+" if offset > 0 else "-"
    return _one(name, f"{{}} {sign} {abs(offset)}", lambda x: _number(x) + offset)


def _times(factor: int, x: Any) -> float:
    return factor * _number(x)


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
        if first == second and pattern != "{} * {}":
            continue
        for a, b in ((first, second), (second, first)):
            yield _two(a, b, pattern, operation)


SIZES = ("hidden_size", "num_attention_heads", "head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _sums(names: Sequence[str]) -> Iterator[Candidate]:
    yield from _pairs([n for n in names if n in SIZES], [n for n in names if n in SIZES])


def _conditions(names: Sequence[str], examples: Sequence[Example]) -> Iterator[Candidate]:
    first = examples[0].env
    lists = [n for n in names if isinstance(first.get(n), list | tuple)]
    flags = [n for n in names if any(isinstance(e.env.get(n), bool) for e in examples)]
    counts = [
        n for n in names if any(_is_count(e.env.get(n)) for e in examples) and not any(_is_size(n, e) for e in examples)
    ]
    for name in lists:
        yield from _of_list(name, examples)
    for name in flags:
        yield _field(name)
    for name in names:
        yield _one(name, "{} is not None", lambda x: x is not None)
        yield Candidate(Expression(f"c.{field_name(name)}", (name,)), partial(_nonzero, name))
    for name in counts:
        yield from _of_count(name)
    for name in names:
        for value in sorted({e.env[name] for e in examples if isinstance(e.env.get(name), str)}):
            yield _one(name, f"{{}} == {_escaped(value)}", partial(operator.eq, value))
    for flag, name in product(flags, lists + counts):
        for part in _of_list(name, examples) if name in lists else _of_count(name):
            yield _both(flag, part)
    for a, b in product(counts, counts):
        yield _by_layer((a, b), "i % {} == {}", lambda i, x, y: i % x == y)
        yield _by_layer((a, b), "i >= {} and i % {} == 0", lambda i, x, y: i >= x and i % y == 0)
        yield _by_layer((a, b), "i >= {} - {}", lambda i, x, y: i >= x - y)
    for name, a in product(lists, counts):
        yield _by_layer((name, a), "i not in {} and (i + 1) % {} == 0", lambda i, x, y: i not in x and (i + 1) % y == 0)


def _nonzero(name: str, env: Mapping[str, Any], i: int) -> bool:
    return bool(_number(env[name] or 0))


def _both(flag: str, part: Candidate) -> Candidate:
    text = f"c.{field_name(flag)} and {part.expression.clause}"
    fields = (flag, *part.expression.fields)
    return Candidate(
        Expression(text, fields, part.expression.per_layer, atom=False),
        lambda env, i: bool(env[flag]) and part.evaluate(env, i),
    )


def _escaped(value: str) -> str:
    """A quoted text that can stand in a pattern."""
    return repr(value).replace("{", "{{").replace("}", "}}")


def _is_size(name: str, example: Example) -> bool:
    """Whether a number is beyond all layers, so that it can't say which ones."""
    value = example.env.get(name)
    return isinstance(value, int) and not isinstance(value, bool) and value > example.layers


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _of_list(name: str, examples: Sequence[Example]) -> Iterator[Candidate]:
    values = {v for e in examples for v in _listed(e.env.get(name)) if isinstance(v, str | int)}
    strings = sorted(v for v in values if isinstance(v, str))
    for value in strings:
        yield _by_layer((name,), f"{{}}[i] == {_escaped(value)}", partial(_item_is, value))
    if any(v is None for e in examples for v in _listed(e.env.get(name))):
        yield _by_layer((name,), "{}[i] is not None", lambda i, x: _item(x, i) is not None)
    elif values and not strings:
        yield _layered(name)
        yield _by_layer((name,), "i in {}", lambda i, x: i in x)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _item_is(value: str, i: int, values: Any) -> bool:
    return bool(_item(values, i) == value)


def _of_count(name: str) -> Iterator[Candidate]:
    yield _by_layer((name,), "i < {}", lambda i, x: i < x)
    yield _by_layer((name,), "(i + 1) % {} == 0", lambda i, x: (i + 1) % x == 0)
    yield _by_layer((name,), "i % {} == 0", lambda i, x: i % x == 0)
