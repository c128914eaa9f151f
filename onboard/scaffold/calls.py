"""Values of the wiring: a block with its arguments, and one expression tree over several examples of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onboard.scaffold.expressions import Example, Expression, Search, same

REQUIRED = object()
MAX_DEPTH = 3


@dataclass(frozen=True)
class Rotating:
    """Stands for a :class:`vllm_neuron.nn.Rotary`; ``key`` is the layer type that its settings are under, or ""."""

    key: str = ""


@dataclass(frozen=True)
class Index:
    """Stands for the layer's own index, ``i``."""


@dataclass(frozen=True)
class Arg:
    """One argument.

    Attributes:
        name: of the parameter; "" for a positional one.
        value: a plain value, None, :class:`Rotating` or a :class:`Call`.
        path: of the value in the architecture, as in ``ModelFacts.sources``.
        default: what the block takes when the argument is left out.
    """

    name: str
    value: Any
    path: str = ""
    default: Any = REQUIRED


@dataclass(frozen=True)
class Call:
    """A block: its class and arguments."""

    block: str
    args: tuple[Arg, ...] = ()

    def arg(self, name: str) -> Arg | None:
        """The argument of that name."""
        return next((a for a in self.args if a.name == name), None)


@dataclass(frozen=True)
class Tree:
    """Source text with what it needs.

    Attributes:
        text: Python over ``c``, ``i`` and ``rotary``.
        fields: config fields that are read.
        blocks: class names to import.
    """

    text: str
    fields: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


class Unbound(Exception):
    """No expression gives the value at ``path``; ``values`` are what it should have been in the examples."""

    def __init__(self, path: str, values: Sequence[Any]) -> None:
        super().__init__(f"{path}: no expression over the config gives {list(values)!r:.300}")
        self.path, self.values = path, tuple(values)


@dataclass
class Unifier:
    """Makes one expression of a value that is known in several examples.

    Args:
        search: over the config's fields.
        hints: path -> fields that decide it.
    """

    search: Search
    hints: dict[str, tuple[str, ...]]
    layered: bool = True
    notes: list[str] = field(default_factory=list)

    def unify(self, examples: Sequence[Example], values: Sequence[Any], path: str, depth: int = 0) -> Tree:
        """The expression.

        Args:
            examples: configs and layers.
            values: the value in each.
            path: names the value in messages and finds its hints.

        Raises:
            Unbound: nothing fits.
        """
        if all(isinstance(v, Index) for v in values):
            return Tree("i")
        if all(isinstance(v, Call) for v in values) and len({v.block for v in values}) == 1:
            try:
                return self._call(examples, values, depth)
            except Unbound as error:
                unbound = error
        elif any(isinstance(v, Call | Rotating) for v in values):
            if all(isinstance(v, Rotating) for v in values):
                tree = self._rotary(examples, values)
                if tree is not None:
                    return tree
            unbound = Unbound(path, values)
        else:
            found = self.search.value(examples, values, self._hints(path))
            if found is not None and (self.layered or not found.per_layer):
                return Tree(found.text, found.fields)
            unbound = Unbound(path, values)
        if depth >= MAX_DEPTH:
            raise unbound
        return self._conditional(examples, values, path, depth, unbound)

    def _hints(self, path: str) -> tuple[str, ...]:
        return self.hints.get(path, ())

    def _deciding(self, path: str) -> tuple[str, ...]:
        """Fields that decide the value, then those of what stands beside it in the architecture."""
        parent = path.rpartition(".")[0]
        beside = [n for p, names in self.hints.items() if parent and p.startswith(parent + ".") for n in names]
        kinds = [n for p, names in self.hints.items() if p.startswith("layers.") for n in names]
        return (*self._hints(path), *beside, *kinds)

    def _call(self, examples: Sequence[Example], values: Sequence[Call], depth: int) -> Tree:
        names = list(dict.fromkeys(a.name or f"#{k}" for v in values for k, a in enumerate(v.args)))
        parts: list[str] = []
        fields: list[str] = []
        blocks = [values[0].block]
        conditions: list[str] = []
        for name in names:
            args = [a for a in (_get(v, name) for v in values) if a is not None]
            if len(args) < len(values):
                raise Unbound(f"{values[0].block}.{name}", args)
            if all(a.default is not REQUIRED and _equal(a.value, a.default) for a in args):
                continue
            tree = self.unify(examples, [a.value for a in args], args[0].path, depth)
            parts.append(tree.text if name.startswith("#") else f"{name}={tree.text}")
            fields += tree.fields
            blocks += tree.blocks
            conditions += tree.conditions
        return Tree(f"{values[0].block}({', '.join(parts)})", tuple(fields), tuple(blocks), tuple(conditions))

    def _rotary(self, examples: Sequence[Example], values: Sequence[Rotating]) -> Tree | None:
        if all(v.key == "" for v in values):
            return Tree("rotary")
        keys = [v.key for v in values]
        for name in self._hints("layers.kinds") or ("layer_types",):
            found = self.search.value(examples, keys, (name,))
            if found is not None:
                return Tree(f"rotary[{found.text}]", found.fields)
        return None

    def _conditional(
        self, examples: Sequence[Example], values: Sequence[Any], path: str, depth: int, unbound: Unbound
    ) -> Tree:
        for condition, truth in self.search.predicates(examples, self.layered, self._deciding(path)):
            if _splits_one_kind(values, truth):
                continue
            try:
                yes = self.unify(*_where(examples, values, truth, True), path, MAX_DEPTH)
                no = self.unify(*_where(examples, values, truth, False), path, MAX_DEPTH)
            except Unbound:
                continue
            return Tree(
                chosen(condition, yes.text, no.text),
                (*condition.fields, *yes.fields, *no.fields),
                (*yes.blocks, *no.blocks),
                (condition.text, *yes.conditions, *no.conditions),
            )
        if depth + 1 < MAX_DEPTH:
            tree = self._nested(examples, values, path, depth)
            if tree is not None:
                return tree
        raise unbound

    def _nested(self, examples: Sequence[Example], values: Sequence[Any], path: str, depth: int) -> Tree | None:
        """A condition whose one side needs a further condition."""
        for condition, truth in self.search.predicates(examples, self.layered, self._deciding(path)):
            for side in (True, False):
                try:
                    simple = self.unify(*_where(examples, values, truth, side), path, MAX_DEPTH)
                    other = self.unify(*_where(examples, values, truth, not side), path, depth + 1)
                except Unbound:
                    continue
                yes, no = (simple, other) if side else (other, simple)
                return Tree(
                    f"{_grouped(yes)} if {condition.text} else {_grouped(no)}",
                    (*condition.fields, *yes.fields, *no.fields),
                    (*yes.blocks, *no.blocks),
                    (condition.text, *yes.conditions, *no.conditions),
                )
        return None


def _grouped(tree: Tree) -> str:
    """The text as one side of a condition."""
    return f"({tree.text})" if tree.conditions else tree.text


def chosen(condition: Expression, yes: str, no: str) -> str:
    """``yes if condition else no``, as a person would write it where a side is a truth value."""
    if (yes, no) == ("True", "False"):
        return condition.text
    if (yes, no) == ("False", "True"):
        return f"not {condition.inner}"
    if no == "False":
        return f"{condition.clause} and {yes}"
    return f"{yes} if {condition.text} else {no}"


def _get(call: Call, name: str) -> Arg | None:
    if name.startswith("#"):
        index = int(name[1:])
        return call.args[index] if index < len(call.args) else None
    return call.arg(name)


def _equal(a: Any, b: Any) -> bool:
    return a == b if isinstance(a, Call) or isinstance(b, Call) else same(a, b)


def _splits_one_kind(values: Sequence[Any], truth: Sequence[bool]) -> bool:
    """Whether a partition puts None (or another class) on both sides, so that it explains nothing."""
    kinds = [v.block if isinstance(v, Call) else type(v) for v in values]
    if len(set(kinds)) == 1:
        return False
    sides = [{k for k, t in zip(kinds, truth, strict=True) if t is side} for side in (True, False)]
    return bool(sides[0] & sides[1])


def _where(
    examples: Sequence[Example], values: Sequence[Any], truth: Sequence[bool], side: bool
) -> tuple[list[Example], list[Any]]:
    chosen = [k for k, t in enumerate(truth) if t is side]
    return [examples[k] for k in chosen], [values[k] for k in chosen]
