"""The Markdown view of ``onboard kernels``."""

from __future__ import annotations

from onboard.checks.kernels import KernelReport
from onboard.report.kernels_rows import TITLES, head, lines, verdict


def render(report: KernelReport) -> str:
    """The report as a document."""
    every = lines(report)
    parts = [f"# Kernels of {_cell(report.model)}", "", *(f"- {_cell(line)}" for line in head(report))]
    for phase, title in TITLES.items():
        some = [line for line in every if line.phase == phase]
        if some:
            parts += ["", f"## {title.capitalize()}", "", "| operation | sizes | calls a step | kernel | why not |"]
            parts.append("|---|---|---:|---|---|")
            parts += [
                f"| {line.operation} | {line.sizes} | {line.calls} | {line.choice} | {_cell(line.why)} |"
                for line in some
            ]
    if report.left:
        parts += ["", "## Left to the compiler", ""]
        parts += [f"- {operation}: {_cell(reason)}" for operation, reason in report.left.items()]
    measured = [row for row in report.rows if row.cost is not None]
    if measured:
        from onboard.report.kernels_cost import render as render_costs

        parts += ["", *render_costs(measured)]
    return "\n".join([*parts, "", _cell(verdict(report)), ""])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
