"""The Markdown view of a diff, for a pull request or a plan."""

from __future__ import annotations

from onboard.diff.rows import ITEMS, Diff, Row
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.markdown import escape, table
from onboard.report.structure import markdown_trees


def render(diff: Diff) -> str:
    """The whole document."""
    sides = (diff.a, diff.b)
    names = [escape(side.name) for side in sides]
    parts = [f"# {names[0]} and {names[1]}", escape(diff.sentence) + "."]
    if diff.why:
        parts.append(escape(diff.why) + ".")
    warnings = [f"- {escape(side.name)}: {escape(w)}" for side in sides for w in (*side.warnings, *side.notes)]
    if warnings:
        parts.append("\n".join(dict.fromkeys(warnings)))
    costs = [(name, *values) for name, values in numbers.costs(sides) + numbers.size_rows(diff.of_kind("size"))]
    parts.append(table(["", *names], costs))
    for item in ITEMS:
        rows = [row for row in diff.of_kind("semantic") if row.item == item]
        if rows:
            head = ["field", *names, "covered by", "touches"]
            parts += [f"## {item}", table(head, (_cells(row) for row in rows))]
    spelled = diff.of_kind("spelling")
    if spelled:
        rows_of = ((row.field, text(row.a), text(row.b)) for row in spelled)
        parts += ["## spelling", table(["field", *names], rows_of)]
    return "\n\n".join([*parts, *markdown_trees(sides)]) + "\n"


def _cells(row: Row) -> list[str]:
    def value(shown: object, source: str | None) -> str:
        return f"{text(shown)} ({source})"

    covered = f"to write: {row.missing}" if row.missing is not None else str(row.covered_by)
    if row.goes_with is not None:
        covered = f"part of {row.goes_with}: {row.missing or row.covered_by}"
    return [row.field, value(row.a, row.a_source), value(row.b, row.b_source), covered, ", ".join(row.affects)]
