"""A proof as rows: what its terminal and Markdown views share."""

from __future__ import annotations

from collections.abc import Iterable

from onboard.prove.proof import Check, Proof, Status

COLUMNS = ("blocks", "whole", "cache", "ranks")
HEADINGS = ("blocks", "whole model", "cached", "1, 2, 4 ranks")


def summary(proof: Proof) -> str:
    """One sentence: what was proved, and how well."""
    measured = "" if proof.worst is None else f"; worst relative error {proof.worst:.1e}, bar 1e-05"
    passed = sum(check.status is Status.PASSED for check in proof.checks)
    part = f" of what was asked ({', '.join(proof.partial)})" if proof.partial else ""
    return f"{proof.package} ({proof.architecture}): {proof.verdict.value}{part}, {passed} checks passed{measured}"


def variants(proof: Proof) -> list[tuple[str, list[str]]]:
    """Each variant with one cell for each of :data:`COLUMNS`: the worst error, or how the checks ended."""
    names = list(dict.fromkeys(check.variant for check in proof.checks if check.variant))
    return [(name, _cells([c for c in proof.checks if c.variant == name])) for name in names]


def _cells(checks: list[Check]) -> list[str]:
    before = [check for check in checks if check.kind not in COLUMNS]
    if before and len(before) == len(checks):
        return [before[0].status.value] * len(COLUMNS)
    return [cell(check for check in checks if check.kind == kind) for kind in COLUMNS]


def cell(checks: Iterable[Check]) -> str:
    """``8.1e-07``, ``failed 1.2e-02``, ``refused``, ``not run``, or ``-`` when nothing was asked."""
    found = list(checks)
    for status in (Status.FAILED, Status.NOT_RUN):
        if any(check.status is status for check in found):
            errors = [c.rel_err for c in found if c.status is status and c.rel_err is not None]
            return f"{status.value} {max(errors):.1e}" if errors else status.value
    errors = [check.rel_err for check in found if check.rel_err is not None]
    if errors:
        return f"{max(errors):.1e}"
    return found[0].status.value if found else "-"


def others(proof: Proof) -> list[Check]:
    """The checks that belong to no variant: the engine and the real checkpoint."""
    return [check for check in proof.checks if not check.variant]


def told(checks: Iterable[Check]) -> list[str]:
    """``variants: checks: message``, one line for all that say the same."""
    whats: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        whats.setdefault((check.variant, check.message), []).append(check.what)
    variants: dict[tuple[str, str], list[str]] = {}
    for (variant, message), names in whats.items():
        variants.setdefault((", ".join(names), message), []).append(variant)
    return [
        ": ".join(filter(None, (", ".join(filter(None, names)), what, message)))
        for (what, message), names in variants.items()
    ]


def noted(notes: Iterable[str]) -> list[str]:
    """Notes that differ in their variant only, as one line."""
    variants: dict[str, list[str]] = {}
    for note in notes:
        variant, _, text = note.partition(": ")
        variants.setdefault(text, []).append(variant)
    return [f"{', '.join(names)}: {text}" for text, names in variants.items()]
