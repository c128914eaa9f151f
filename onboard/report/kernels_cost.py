"""The counted cost of kernels, for the views of ``onboard kernels --cost``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from onboard.checks.kernels import Call, Row
from onboard.checks.kernels_cost import RowCost
from onboard.report.terminal import plain
from vllm_neuron.nki.cost import CHIPS

TITLE = "counted on the stand-in, beside the roofline"
WIDTHS = (25, 6, 10, 6, 5, 10, 6, 5)
FOOT = (
    "least: the time of the busiest of HBM and tensor engine when every operand moves once. work: what the kernel does "
    "of that, as a multiple. time: by all engines' counts, as if they overlapped. Arithmetic on counts with documented "
    "figures, not a measurement; microseconds of one call.",
    *(f"{chip.name}: {chip.source}." for chip in CHIPS.values()),
)


def columns() -> list[str]:
    """Titles of :func:`cells`."""
    found = ["operation", "bound"]
    for chip in CHIPS:
        found += [f"{chip} least", "work", "time"]
    return found


def cells(row: Row, beside: Sequence[Row] = ()) -> list[str]:
    """One measured row in words; among rows of the same operation, with an argument that tells it from them."""
    cost: RowCost = row.cost
    first = next(iter(cost.runs.values()))
    limits = "+".join(dict.fromkeys(run.least.limit for run in first if run.least is not None)) or "?"
    found = [row.call.operation + _apart(row, beside), limits]
    for chip, runs in cost.runs.items():
        ratios = [run.ratio for run in runs if run.ratio is not None]
        found += [
            _micro(cost.least(chip)),
            f"{max(ratios):.2f}x" if ratios else "?",
            _micro(cost.counted(chip)),
        ]
    return found


def _apart(row: Row, beside: Sequence[Row]) -> str:
    same = [other for other in beside if other is not row and other.call.operation == row.call.operation]
    for name, text in row.call.arguments:
        if same and all(dict(other.call.arguments).get(name) != text for other in same):
            return f" {text.split(']')[0]}]" if text.startswith("[") else f" {name}={text}"
    return ""


def parts(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """A title and the rows of each phase and size; a call that was shown before is left out."""
    groups: dict[tuple[str, int], list[Row]] = {}
    seen: set[Call] = set()
    for row in rows:
        if row.call not in seen:
            seen.add(row.call)
            groups.setdefault((row.shape.phase.value, row.shape.size), []).append(row)
    for (phase, size), some in groups.items():
        yield f"{phase}, {size} {'rows' if phase == 'decode' else 'tokens'}", some


def totals(rows: Sequence[Row]) -> Iterator[str]:
    """The kernels of a whole step, one after the other, for each phase whose kernels were all counted in one size."""
    phases: dict[str, list[Row]] = {}
    for row in rows:
        phases.setdefault(row.shape.phase.value, []).append(row)
    for phase, some in phases.items():
        if len({row.shape.size for row in some}) > 1:
            continue
        words = []
        for chip in CHIPS:
            least = [row.cost.least(chip) for row in some]
            known = [row.count * value for row, value in zip(some, least, strict=True) if value is not None]
            floor = f", at least {1e3 * sum(known):.3g}" if len(known) == len(some) else ""
            counted = sum(row.count * row.cost.counted(chip) for row in some)
            words.append(f"{chip} {1e3 * counted:.3g} ms{floor}")
        yield f"all kernels of a step, {phase} of {some[0].shape.size}: {'; '.join(words)}"


def _micro(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    value = 1e6 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    console.print()
    console.print(plain(TITLE, "bold"))
    for number, (title, some) in enumerate(parts(rows)):
        table = Table.grid(padding=(0, 1))
        for column, width in enumerate(WIDTHS):
            table.add_column(justify="left" if column < 2 else "right", min_width=width)
        if number == 0:
            table.add_row(*(plain(word, "dim") for word in columns()))
        for row in some:
            table.add_row(*(plain(cell) for cell in cells(row, some)))
        console.print(plain(title, "dim"))
        console.print(table)
    for line in totals(rows):
        console.print(plain(line))
    for line in FOOT:
        console.print(plain(line, "dim"))


def render(rows: Sequence[Row]) -> list[str]:
    """The tables in Markdown."""
    lines = [f"## {TITLE.capitalize()}"]
    for title, some in parts(rows):
        lines += ["", f"### {title.capitalize()}", "", "| " + " | ".join(columns()) + " |"]
        lines.append("|---|---|" + "---:|" * (len(columns()) - 2))
        lines += ["| " + " | ".join(cells(row, some)) + " |" for row in some]
    return [*lines, "", *(f"- {line}" for line in (*totals(rows), *FOOT))]
