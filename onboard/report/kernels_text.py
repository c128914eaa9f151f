"""The terminal view of ``onboard kernels``."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from onboard.checks.kernels import KernelReport
from onboard.report.kernels_rows import TITLES, Line, head, lines, verdict
from onboard.report.terminal import plain


def show(report: KernelReport, console: Console) -> None:
    """Print the report."""
    console.print(plain(report.model, "bold"))
    for text in head(report):
        console.print(plain(text, "dim"))
    every = lines(report)
    for phase, title in TITLES.items():
        some = [line for line in every if line.phase == phase]
        if some:
            console.print()
            console.print(plain(title, "bold"))
            console.print(_table(some))
            for line in some:
                if line.why:
                    style = "yellow" if line.refused else "dim"
                    console.print(
                        Padding(plain(f"{line.operation}, {line.sizes}: {line.why}", style), (0, 0, 0, 2), expand=False)
                    )
    if report.left:
        console.print()
        console.print(plain("left to the compiler", "bold"))
        for operation, reason in report.left.items():
            console.print(Padding(plain(f"{operation}: {reason}"), (0, 0, 0, 2), expand=False))
    measured = [row for row in report.rows if row.cost is not None]
    if measured:
        from onboard.report.kernels_cost import show as show_costs

        show_costs(measured, console)
    console.print()
    console.print(plain(verdict(report), "yellow" if report.refusals else "green"))


def _table(some: list[Line]) -> Table:
    table = Table.grid(padding=(0, 2))
    for right in (False, False, True, False):
        table.add_column(justify="right" if right else "left")
    table.add_row(*(plain(title, "dim") for title in ("operation", "sizes", "calls", "kernel")))
    for line in some:
        style = "yellow" if line.refused else ""
        table.add_row(plain(line.operation), plain(line.sizes), plain(str(line.calls)), plain(line.choice, style))
    return table
