"""Plots of a validation as inline SVG: curves against position, scatter of two sides, heat maps. No library, no script.

Colours come from the page's style sheet by class, so that the plots follow the reader's light or dark setting. Texts
are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onboard.report.html import visible

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960.0, 64.0, 8.0, 8.0, 30.0
Scale = Callable[[float], float]
# Upper limits of the heat map's steps, as ratios to the baseline's error; what is above the last one is the last step.
STEPS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
STYLE = """
svg.plot { display:block; width:100%; height:auto; margin:.5rem 0; }
svg.plot text { fill:var(--dim); font:11px system-ui, "DejaVu Sans", sans-serif; }
svg.plot .axis { stroke:var(--line); stroke-width:1; fill:none; }
svg.plot .line { fill:none; stroke-width:1.6; stroke-linejoin:round; }
svg.plot .dots { fill:none; stroke-width:3.5; stroke-linecap:round; stroke-opacity:.55; }
svg.plot .frame { fill:none; stroke:var(--line); } svg.plot a:hover .hit { stroke:var(--fg); }
svg.plot .hit { fill:transparent; stroke:none; } svg.plot .mark { stroke:var(--bg); stroke-width:1.2; }
.fill-bad { fill:var(--todo); } .fill-tie { fill:var(--c1); }
""" + "".join(
    [f".stroke-{i} {{ stroke:var(--c{i}); }} .swatch-{i} {{ background:var(--c{i}); }}\n" for i in range(4)]
    + [
        f".heat-{i} {{ fill:var(--c4); fill-opacity:{opacity}; background:color-mix(in srgb, var(--c4) "
        f"{opacity:.0%}, transparent); }}\n"
        for i, opacity in enumerate((0.03, 0.1, 0.22, 0.38, 0.56, 0.76, 1.0))
    ]
    + [".heat-none { fill:var(--line); background:var(--line); }\n"]
)


class Series(NamedTuple):
    """One curve: its name, the number of its colour, its values (what is not finite leaves a gap)."""

    name: str
    colour: int
    values: Sequence[float]


class Mark(NamedTuple):
    """A point on the first curve that leads somewhere: its number, an anchor on the page, words, and if it is bad."""

    at: int
    anchor: str
    text: str
    bad: bool


def curves(series: Sequence[Series], *, start: int, label: str, marks: Iterable[Mark] = ()) -> str:
    """Values against position, on a logarithmic scale.

    Args:
        series: the curves; the first one carries the marks.
        start: position of the first value.
        label: what the plot shows, for its title and for readers that don't see it.
        marks: points with links.
    """
    positive = [v for s in series for v in s.values if math.isfinite(v) and v > 0]
    count = max((len(s.values) for s in series), default=0)
    if not positive or not count:
        return ""
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    low, high = max(low, high - 8), max(high, low + 1)
    height = 220.0
    plot_w, plot_h = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def x(index: float) -> float:
        return LEFT + plot_w * (index / max(1, count - 1))

    def y(value: float) -> float:
        exponent = min(max(math.log10(value), low), high) if value > 0 else low
        return TOP + plot_h * (high - exponent) / (high - low)

    parts = [_open(height, label)]
    every = 1 if high - low <= 4 else 2
    for power in range(low, high + 1, every):
        at = y(10.0**power)
        parts.append(f'<path class="axis" d="M{LEFT:.0f} {at:.1f}H{WIDTH - RIGHT:.0f}"/>')
        parts.append(f'<text x="{LEFT - 6:.0f}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>')
    parts += _positions(count, start, x, height)
    parts += [f'<path class="line stroke-{s.colour}" d="{_line(s.values, x, y)}"/>' for s in series]
    for mark in marks:
        value = series[0].values[mark.at]
        height_of = y(value if math.isfinite(value) else 10.0**high)
        kind = "fill-bad" if mark.bad else "fill-tie"
        parts.append(
            f'<a href="#{visible(mark.anchor)}"><title>{visible(mark.text)}</title>'
            f'<circle class="mark {kind}" cx="{x(mark.at):.1f}" cy="{height_of:.1f}" r="4"/></a>'
        )
    return "".join(parts) + "</svg>" + _legend([(s.name, f"swatch-{s.colour}") for s in series])


def _line(values: Sequence[float], x: Scale, y: Scale) -> str:
    out, pen = [], "M"
    for index, value in enumerate(values):
        if math.isfinite(value):
            out.append(f"{pen}{x(index):.1f} {y(value):.1f}")
            pen = "L"
        else:
            pen = "M"
    return "".join(out)


def _positions(count: int, start: int, x: Scale, height: float) -> list[str]:
    step = _nice(count / 8)
    first = -(-start // step) * step
    return [
        f'<text x="{x(at - start):.1f}" y="{height - 10:.0f}" text-anchor="middle">{at}</text>'
        for at in range(first, start + count, step)
    ]


def _nice(rough: float) -> int:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 10 ** max(0, math.floor(math.log10(max(rough, 1))))
    return next(int(k * power) for k in (1, 2, 5, 10) if k * power >= rough or k == 10)


def scatter(points: Sequence[tuple[float, float, float]], *, names: tuple[str, str, str], label: str) -> str:
    """Two sides against a third: ``(expected, target, baseline)`` each; the baseline lies below.

    Args:
        points: values. names: of expected, target and baseline. label: what the plot shows.
    """
    shown = [p for p in points if all(map(math.isfinite, p))]
    if not shown:
        return ""
    low = min(min(p) for p in shown)
    high = max(max(p) for p in shown)
    span = (high - low) or 1.0
    side = 380.0
    width = side + LEFT + RIGHT
    plot = side - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + plot * (value - low) / span

    def y(value: float) -> float:
        return TOP + plot * (high - value) / span

    parts = [_open(side, label, width)]
    parts.append(f'<path class="axis" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>')
    parts.append(f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{plot}" height="{plot}"/>')
    for value in (low, (low + high) / 2, high):
        parts.append(f'<text x="{x(value):.1f}" y="{side - 10:.0f}" text-anchor="middle">{value:.3g}</text>')
        parts.append(f'<text x="{LEFT - 6:.0f}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for colour, place in ((1, 2), (0, 1)):
        dots = "".join(f"M{x(p[0]):.1f} {y(p[place]):.1f}h0" for p in shown)
        parts.append(f'<path class="dots stroke-{colour}" d="{dots}"/>')
    legend = _legend([(f"{names[1]} against {names[0]}", "swatch-0"), (f"{names[2]} against {names[0]}", "swatch-1")])
    return f'<div class="square">{"".join(parts)}</svg>{legend}</div>'


class HeatRow(NamedTuple):
    """One row: its name, an anchor on the page (empty for none), words, and a ratio for each cell (nan: none)."""

    name: str
    anchor: str
    text: str
    ratios: Sequence[float]


def heat(rows: Sequence[HeatRow], columns: Sequence[str], *, label: str, scale: bool = True) -> str:
    """A map of ratios to the baseline, one row of cells each, one path a step of the scale.

    Args:
        rows: from above. columns: names below the cells, empty where there is none. label: what the map shows.
        scale: explain the steps below the map.
    """
    count = max((len(row.ratios) for row in rows), default=0)
    if not count:
        return ""
    left = 40.0 + 6.2 * min(26, max(len(row.name) for row in rows))
    cell_h = 14.0
    height = TOP + cell_h * len(rows) + BOTTOM
    cell_w = (WIDTH - left - RIGHT) / count
    paths: dict[str, list[str]] = {}
    parts = [_open(height, label)]
    for line, row in enumerate(rows):
        top = TOP + cell_h * line
        for index, ratio in enumerate(row.ratios):
            cell = f"M{left + index * cell_w:.1f} {top:.0f}h{cell_w:.2f}v{cell_h - 1:.0f}h-{cell_w:.2f}z"
            paths.setdefault(f"heat-{step(ratio)}", []).append(cell)
    parts += [f'<path class="{kind}" d="{"".join(cells)}"/>' for kind, cells in sorted(paths.items())]
    for line, row in enumerate(rows):
        top = TOP + cell_h * line
        shown = row.name if len(row.name) <= 30 else f"{row.name[:29]}…"
        text = f'<text x="{left - 6:.0f}" y="{top + 10.5:.1f}" text-anchor="end">{visible(shown)}</text>'
        hit = f'<rect class="hit" x="0" y="{top:.0f}" width="{WIDTH:.0f}" height="{cell_h - 1:.0f}"/>'
        inner = f"<title>{visible(row.text)}</title>{text}{hit}"
        parts.append(f'<a href="#{visible(row.anchor)}">{inner}</a>' if row.anchor else f"<g>{inner}</g>")
    for index, name in enumerate(columns):
        if name:
            at = left + (index + 0.5) * cell_w
            parts.append(f'<text x="{at:.1f}" y="{height - 12:.0f}" text-anchor="middle">{visible(name)}</text>')
    if not scale:
        return "".join(parts) + "</svg>"
    names = [f"up to {limit:g}" for limit in STEPS] + [f"above {STEPS[-1]:g}", "not compared"]
    kinds = [f"heat-{i}" for i in range(len(STEPS) + 1)] + ["heat-none"]
    return "".join(parts) + "</svg>" + _legend(list(zip(names, kinds, strict=True)))


def step(ratio: float) -> str:
    """The step of the scale that a ratio falls into; ``none`` for nan."""
    if math.isnan(ratio):
        return "none"
    return str(sum(ratio > limit for limit in STEPS))


def binned(ratios: Sequence[float], most: int) -> list[float]:
    """At most ``most`` values: the largest of each run of neighbours."""
    if len(ratios) <= most:
        return list(ratios)
    size = -(-len(ratios) // most)
    groups = [ratios[at : at + size] for at in range(0, len(ratios), size)]
    return [max((r for r in group if not math.isnan(r)), default=math.nan) for group in groups]


def _open(height: float, label: str, width: float = WIDTH) -> str:
    told = visible(label)
    return f'<svg class="plot" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{told}">'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    spans = "".join(f'<span><i class="{kind}"></i>{visible(name)}</span>' for name, kind in entries)
    return f'<div class="legend">{spans}</div>'
