"""The Markdown view of ``onboard inspect``."""

from __future__ import annotations

from onboard.diff.inspect import Inspection
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.markdown import escape, table
from onboard.report.structure import markdown_trees


def render(model: Inspection) -> str:
    """One model as Markdown."""
    side = model.side
    parts = [f"# {escape(side.name)}", "\n".join(f"- {escape(line)}" for line in (*model.head, *side.warnings))]
    parts.append(table(["", "value"], [(name, *values) for name, values in numbers.costs([side])]))
    rows = [(i, f, text(v), s or "") for i, f, v, s in model.traits]
    parts.append(table(["item", "field", "value", "source"], rows))
    parts += ["\n".join(f"- {escape(note)}" for note in side.notes)] if side.notes else []
    return "\n\n".join([*parts, *markdown_trees([side])]) + "\n"
