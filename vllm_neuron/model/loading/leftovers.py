"""The one message about a checkpoint that does not fit its model: grouped, with the most likely cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vllm_neuron.errors import CheckpointError
from vllm_neuron.model.loading.plan import Plan
from vllm_neuron.model.loading.table import Table

LINES = 20


class Plain(str):
    """Text that shows without quotes in a message."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def grouped(names: Iterable[str]) -> list[str]:
    """Names that differ in numbers only as one line: ``layers.*.attn.qkv.bias (28 names)``; a lone one in full."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.|\s|$)", "*", name), []).append(name)
    return [f"{group} ({len(of)} names)" if len(of) > 1 else of[0] for group, of in groups.items()]


def check(plan: Plan, flags: Mapping[str, bool], table: Table) -> None:
    """Stop when a parameter or a key is left over.

    Raises:
        CheckpointError: with the parameters that nothing fills and the keys that no row takes.
    """
    if plan.complete:
        return
    counts = {
        "parameters without keys": len(plan.unfilled),
        "keys without parameters": len(plan.unused),
        "ambiguous names": len(plan.ambiguous),
    }
    needs = (f"{name} needs {' + '.join(keys) or 'a row in the table'}" for name, keys in plan.unfilled.items())
    sections = {
        "Parameters that nothing fills:": grouped(needs),
        "Keys that no row of the table takes:": grouped(plan.unused),
        "Ambiguous:": grouped(f"{name}: {' or '.join(several)}" for name, several in plan.ambiguous.items()),
    }
    text = [_hint(plan, flags, table)]
    for title, lines in sections.items():
        if lines:
            text += [title, *(f"  {line}" for line in lines[:LINES])]
            text += [f"  and {len(lines) - LINES} more groups"] if len(lines) > LINES else []
    raise CheckpointError(
        "checkpoint",
        Plain(", ".join(f"{count} {what}" for what, count in counts.items() if count)),
        "every parameter filled and every key taken by exactly one row",
        "\n".join(text),
    )


def _hint(plan: Plan, flags: Mapping[str, bool], table: Table) -> str:
    for tie in table.ties():
        missing = [name for name in plan.unfilled if name.rpartition(".")[0] == tie.param]
        if missing and len(missing) == len(plan.unfilled) and not flags[tie.when]:
            keys = ", ".join(plan.unfilled[missing[0]])
            return (
                f"The file has no {keys}: set {tie.when} to true if {tie.param} shares {tie.to}, or fetch that tensor."
            )
    shift = _common_shift(plan)
    if shift is not None:
        return shift
    biases = [key for key in plan.unused if key.endswith(".bias")]
    if biases and len(biases) == len(plan.unused) and not plan.unfilled:
        return "The file has biases that the model does not: give those layers bias=True, or correct the config."
    return (
        "Correct the model's config or its checkpoint table; a key that is not needed takes a Drop row with a reason."
    )


def _common_shift(plan: Plan) -> str | None:
    """One line when all missing keys are in the file under one other prefix."""
    wanted = {key for keys in plan.unfilled.values() for key in keys}
    unused = set(plan.unused)
    if not wanted:
        return None
    first = max(wanted, key=lambda name: (name.count("."), name))
    for key in unused:
        ours, theirs = _prefixes(first, key)
        if all(name.startswith(ours) and theirs + name.removeprefix(ours) in unused for name in wanted):
            where = f"{theirs!r} in the file, {ours!r} in the table"
            return f"All {len(wanted)} names differ by their prefix: {where}."
    return None


def _prefixes(one: str, other: str) -> tuple[str, str]:
    """What is left of two names without their common trailing parts."""
    ours, theirs = one.split("."), other.split(".")
    while ours and theirs and ours[-1] == theirs[-1]:
        ours.pop()
        theirs.pop()
    return "".join(part + "." for part in ours), "".join(part + "." for part in theirs)
