"""A table resolved for one model and one checkpoint: each parameter with its keys, and everything that does not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vllm_neuron.errors import CheckpointError
from vllm_neuron.model.loading.table import Fuse, Map, Row, Split, StackExperts, Table, expand, fill, match

# What trainers and wrappers put in front of a decoder's names: (prefix in the file, what the table has in its place).
PREFIXES = (
    ("language_model.", ""),
    ("model.language_model.", "model."),
    ("model.model.", "model."),
    ("", "model."),
)


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from: keys in the file, and the part of the key that a Split row gives it."""

    keys: tuple[str, ...]
    part: int = 0
    parts: int = 1
    dim: int = 0


@dataclass
class Plan:
    """The answer of :func:`make_plan`; ``problems`` is empty when the load can go on.

    Attributes:
        sources: parameter -> its source.
        redundant: key in the file -> parameter whose tensor it must repeat (a tied head that was saved too).
        dropped: key -> reason.
        unfilled: parameter -> keys that were looked for.
        unused: keys that no row takes.
        ambiguous: parameter -> keys of the rows that both fit.
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

    def check(self, flags: Mapping[str, bool], table: Table) -> None:
        """Stop when anything is left over.

        Raises:
            CheckpointError: with the parameters that nothing fills and the keys that no row takes.
        """
        if self.complete:
            return
        lines = [f"parameter {p} needs {' + '.join(k)}" for p, k in self.unfilled.items()]
        lines += [f"key {k} is in no row of the table" for k in self.unused]
        lines += [f"parameter {p} is filled twice: {k}" for p, k in self.ambiguous.items()]
        raise CheckpointError(
            "checkpoint",
            Shown(lines),
            f"each parameter filled by a key and each key taken ({len(self.unfilled)} parameters without keys, "
            f"{len(self.unused)} keys without parameters)",
            self._hint(flags, table),
        )

    def _hint(self, flags: Mapping[str, bool], table: Table) -> str:
        for tie in table.ties():
            missing = [p for p in self.unfilled if p.rpartition(".")[0] == tie.param]
            if missing and not flags.get(tie.when) and len(self.unfilled) == len(missing):
                return f"The file has no {self.unfilled[missing[0]][0]}: set {tie.when} to true if it shares {tie.to}."
        wanted = [keys[0] for keys in self.unfilled.values()]
        for key in self.unused:
            for name in wanted:
                if key.endswith(name) and all(key.removesuffix(name) + w in self.unused for w in wanted):
                    return f"All {len(wanted)} names differ by the prefix {key.removesuffix(name)!r}."
        if any(key.endswith(".bias") for key in self.unused):
            return "The file has biases that the model lacks: give the layer bias=True, or correct the config."
        return "Mend the model's checkpoint table, or drop a key with a reason."


class Shown(list[str]):
    """Lines shown in full up to a count, the rest as a number."""

    LIMIT = 12

    def __repr__(self) -> str:
        shown = "; ".join(self[: self.LIMIT])
        return shown if len(self) <= self.LIMIT else f"{shown}; and {len(self) - self.LIMIT} more"


def make_plan(table: Table, parameters: Collection[str], keys: Collection[str], flags: Mapping[str, bool]) -> Plan:
    """Resolve a table; shifted names are tried when the plain ones leave a parameter unfilled.

    Args:
        table: the model's rows.
        parameters: names of the model's own parameters (a tied one is not among them).
        keys: names in the checkpoint.
        flags: what ``Tie`` rows ask about.
    """
    plan = _resolve(table, parameters, {key: key for key in keys}, flags)
    if not plan.unfilled:
        return plan
    for found, wanted in PREFIXES:
        names = {_shift(key, found, wanted): key for key in keys}
        shifted = _resolve(table, parameters, names, flags)
        if not shifted.unfilled:
            shifted.remapped = (found, wanted)
            return shifted
    return plan


def _shift(key: str, found: str, wanted: str) -> str:
    if not key.startswith(found) or (not found and key.startswith("lm_head")):
        return key
    return wanted + key.removeprefix(found)


def _resolve(table: Table, parameters: Collection[str], names: Mapping[str, str], flags: Mapping[str, bool]) -> Plan:
    """``names``: name as the table writes it -> key in the file."""
    plan = Plan()
    experts = _expert_keys(names)
    for parameter in parameters:
        fitting, looked_for = [], []
        for row in table.rows:
            for source in _candidates(row, parameter, names, experts):
                looked_for.append(list(source.keys))
                if all(key in names for key in source.keys):
                    fitting.append(source)
        if len(fitting) == 1:
            s = fitting[0]
            plan.sources[parameter] = Source(tuple(names[k] for k in s.keys), s.part, s.parts, s.dim)
        elif fitting:
            plan.ambiguous[parameter] = [key for source in fitting for key in source.keys]
        else:
            missing = looked_for[0] if looked_for else ["a row of the table"]
            plan.unfilled[parameter] = [k for k in missing if k not in names] or missing
    _account(plan, table, names, flags)
    return plan


def _account(plan: Plan, table: Table, names: Mapping[str, str], flags: Mapping[str, bool]) -> None:
    used = {key for source in plan.sources.values() for key in source.keys}
    tied = {row.key: tie for tie in table.ties() if flags.get(tie.when) for row in table.rows
            if isinstance(row, Map) and row.param == tie.param}
    for name, key in names.items():
        if key in used:
            continue
        module, _, leaf = name.rpartition(".")
        reason = table.drop_reason(name)
        if reason is not None:
            plan.dropped[key] = reason
        elif module in tied:
            plan.redundant[key] = f"{tied[module].to}.{leaf}"
        else:
            plan.unused.append(key)


def _candidates(
    row: Row, parameter: str, names: Mapping[str, str], experts: Mapping[str, int]
) -> list[Source]:
    """The sources that a row offers for a parameter; none when the row is for another one."""
    if not isinstance(row, Map | Fuse | StackExperts | Split):
        return []
    module, _, leaf = parameter.rpartition(".")
    targets = expand(row.params) if isinstance(row, Split) else [row.param]
    for index, target in enumerate(targets):
        for name, suffix in ((parameter, ""), (module, "." + leaf)):
            values = match(target, name)
            if values is None:
                continue
            keys = [fill(key, values) + suffix for key in expand(row.key)]
            if isinstance(row, Split):
                return [Source((keys[0],), index, len(targets), row.dim)]
            if isinstance(row, StackExperts):
                count = max((experts.get(_without_expert(key), 0) for key in keys), default=0)
                keys = [key.replace("{e}", str(e)) for e in range(max(count, 1)) for key in keys]
            return [Source(tuple(keys))]
    return []


def _without_expert(key: str) -> str:
    return key.replace("{e}", "{}")


def _expert_keys(names: Collection[str]) -> dict[str, int]:
    """``a.{}.b`` -> 1 + the largest number in its place, for every number in every name."""
    largest: dict[str, int] = {}
    for name in names:
        for found in re.finditer(r"(?<=\.)\d+(?=\.)", name):
            pattern = name[: found.start()] + "{}" + name[found.end() :]
            largest[pattern] = max(largest.get(pattern, 0), int(found.group()) + 1)
    return largest
