"""A table resolved for one model and one checkpoint: each parameter with its keys, and everything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vllm_neuron.errors import ConfigError, nearest
from vllm_neuron.model.loading.table import Fuse, Map, Split, StackExperts, Table, Tie, expand, fill, match

# What trainers and wrappers put in front of a decoder's names: (prefix in the file, what the table has in its place).
PREFIXES = (
    ("language_model.", ""),
    ("model.language_model.", "model."),
    ("model.model.", "model."),
    ("model.", ""),
    ("base_model.model.", ""),
    ("", "model."),
)


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from.

    Attributes:
        keys: names in the file, in the order in which the parameter's loader gets them.
        part, parts, dim: a Split row's part of the one key; ``parts`` is 1 otherwise.
        transpose, layout: what the row says of the tensors.
    """

    keys: tuple[str, ...]
    part: int = 0
    parts: int = 1
    dim: int = 0
    transpose: bool = False
    layout: str | None = None

    @property
    def own(self) -> tuple[str, ...]:
        """The keys that no other parameter may take."""
        if self.parts > 1:
            return ()
        return self.keys[1:] if self.layout == "query_gate" else self.keys


@dataclass
class Plan:
    """The answer of :func:`make_plan`.

    Attributes:
        sources: parameter -> its source.
        redundant: key in the file -> the key that it must repeat (a tied head that was saved too).
        dropped: key -> reason.
        unfilled: parameter -> keys that were looked for and not found.
        unused: keys that no row takes.
        ambiguous: parameter -> the several sources that fit; key -> the parameters that would share it.
        remapped: (prefix in the file, prefix in the table), when names had to be shifted.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    redundant: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unfilled: dict[str, list[str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    remapped: tuple[str, str] | None = None

    @property
    def complete(self) -> bool:
        """Every parameter and every key is accounted for."""
        return not (self.unfilled or self.unused or self.ambiguous)


Takes = Mapping[str, tuple[tuple[int, ...], int]]


def make_plan(
    table: Table,
    parameters: Collection[str],
    keys: Collection[str],
    flags: Mapping[str, bool],
    takes: Takes | None = None,
) -> Plan:
    """Resolve a table; shifted names are tried when the plain ones leave a parameter unfilled.

    Args:
        table: the model's rows.
        parameters: names of the model's own parameters.
        keys: names in the checkpoint.
        flags: what ``Tie`` rows ask about.
        takes: parameter -> ``(chosen, of)``, for one that takes the chosen alternatives alone of a Fuse row that has
            ``of`` of them.

    Raises:
        ConfigError: a Tie row asks about a flag that is not in ``flags``.
    """
    for tie in table.ties():
        if tie.when not in flags:
            raise ConfigError("Tie: when", tie.when, "a flag of the model", nearest(tie.when, flags))
    takes = takes or {}
    plan = _resolve(table, parameters, {key: key for key in keys}, flags, takes)
    for found, wanted in PREFIXES:
        names = _shifted(keys, found, wanted) if plan.unfilled else None
        if names is None:
            continue
        shifted = _resolve(table, parameters, names, flags, takes)
        if len(shifted.unfilled) < len(plan.unfilled):
            plan = replace(shifted, remapped=(found, wanted))
    return plan


def _shifted(keys: Collection[str], found: str, wanted: str) -> dict[str, str] | None:
    """Name as the table writes it -> key; None when no key has the prefix, or two keys would get one name."""
    names: dict[str, str] = {}
    for key in keys:
        moves = key.startswith(found) and (bool(found) or not key.startswith("lm_head."))
        name = wanted + key.removeprefix(found) if moves else key
        if name in names:
            return None
        names[name] = key
    return names if any(name != key for name, key in names.items()) else None


def _resolve(
    table: Table, parameters: Collection[str], names: Mapping[str, str], flags: Mapping[str, bool], takes: Takes
) -> Plan:
    """``names``: name as the table writes it -> key in the file."""
    plan = Plan()
    stacks = any(isinstance(row, StackExperts) for row in table.rows)
    experts = _expert_counts(names) if stacks else {}
    ties = [tie for tie in table.ties() if flags[tie.when]]
    takers: dict[str, list[str]] = {}
    claimed: set[str] = set()
    for parameter in parameters:
        candidates, shared = _offers(table, parameter, names, ties, experts)
        if parameter in takes:
            candidates = [_chosen(source, *takes[parameter]) for source in candidates]
        fitting = [source for source in candidates if _fits(source, names)]
        claimed.update(names[key] for source in candidates for key in source.keys if key in names)
        if len(fitting) == 1:
            source = replace(fitting[0], keys=tuple(names[key] for key in fitting[0].keys))
            plan.sources[parameter] = source
            if not shared:
                for key in source.own:
                    takers.setdefault(key, []).append(parameter)
        elif fitting:
            plan.ambiguous[parameter] = [" + ".join(source.keys) for source in fitting]
        else:
            plan.unfilled[parameter] = _missing(candidates, names)
    plan.ambiguous |= {key: several for key, several in takers.items() if len(several) > 1}
    _account(plan, table, names, claimed, ties)
    return plan


def _offers(
    table: Table, parameter: str, names: Mapping[str, str], ties: list[Tie], experts: Mapping[str, int]
) -> tuple[list[Source], bool]:
    """The parameter's candidates, and whether they are those of the parameter that it is tied to."""
    module, _, leaf = parameter.rpartition(".")
    for tie in ties:
        if tie.param == module:
            shared = list(_candidates(table, f"{tie.to}.{leaf}", experts))
            if any(_fits(source, names) for source in shared):
                return shared, True
    return list(_candidates(table, parameter, experts)), False


def _chosen(source: Source, chosen: tuple[int, ...], of: int) -> Source:
    """The source without the alternatives that the parameter does not take."""
    if len(source.keys) != of:
        return source
    return replace(source, keys=tuple(source.keys[i] for i in chosen))


def _fits(source: Source, names: Mapping[str, str]) -> bool:
    return all(key in names for key in source.keys)


def _missing(candidates: list[Source], names: Mapping[str, str]) -> list[str]:
    """The missing keys of the candidate that misses fewest."""
    each = [[key for key in source.keys if key not in names] for source in candidates]
    return min(each, key=len, default=[])


def _account(plan: Plan, table: Table, names: Mapping[str, str], claimed: Collection[str], ties: list[Tie]) -> None:
    """Say of each key that no parameter claims whether it is dropped, repeats a tied one, or is left over."""
    repeats = {}
    for tie in ties:
        own, shared = (
            [expand(row.key)[0] for row in table.rows if isinstance(row, Map) and row.param == module]
            for module in (tie.param, tie.to)
        )
        repeats.update({key: shared[0] for key in own if shared})
    for name, key in names.items():
        if key in claimed:
            continue
        module, _, leaf = name.rpartition(".")
        repeated = names.get(f"{repeats[module]}.{leaf}") if module in repeats else None
        reason = table.drop_reason(name)
        if reason is not None:
            plan.dropped[key] = reason
        elif repeated is not None:
            plan.redundant[key] = repeated
        else:
            plan.unused.append(key)


def _candidates(table: Table, parameter: str, experts: Mapping[str, int]) -> Iterator[Source]:
    """The sources that the rows offer for a parameter."""
    module, _, leaf = parameter.rpartition(".")
    for row in table.rows:
        if not isinstance(row, Map | Fuse | StackExperts | Split):
            continue
        targets = expand(row.params if isinstance(row, Split) else row.param)
        for index, target in enumerate(targets):
            for name, suffix in ((parameter, ""), (module, "." + leaf)):
                values = match(target, name)
                if values is not None:
                    keys = tuple(fill(key, values) + suffix for key in expand(row.key))
                    yield _source(row, keys, index, len(targets), experts)


def _source(
    row: Map | Fuse | StackExperts | Split, keys: tuple[str, ...], index: int, targets: int, experts: Mapping[str, int]
) -> Source:
    if isinstance(row, Split):
        return Source(keys, index, targets, row.dim)
    if isinstance(row, Map):
        return Source((keys[index],), transpose=row.transpose, layout=row.layout)
    if isinstance(row, StackExperts):
        count = max(experts.get(key.replace("{e}", "{}"), 1) for key in keys)
        return Source(tuple(key.replace("{e}", str(e)) for e in range(count) for key in keys))
    return Source(keys, transpose=row.transpose, layout=row.layout)


def _expert_counts(names: Collection[str]) -> dict[str, int]:
    """``a.{}.b`` -> 1 + the largest number in its place, for every number in every name."""
    counts: dict[str, int] = {}
    for name in names:
        for found in re.finditer(r"(?<=\.)\d+(?=\.|$)", name):
            pattern = name[: found.start()] + "{}" + name[found.end() :]
            counts[pattern] = max(counts.get(pattern, 0), int(found.group()) + 1)
    return counts
