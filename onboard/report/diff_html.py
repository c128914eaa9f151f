"""The HTML view of a diff: one file, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterator

from onboard.diff.rows import ITEMS, Diff, Row
from onboard.diff.show import text
from onboard.report import numbers
from onboard.report.html import layer_maps, numbers_table, page, visible
from onboard.report.structure import html_trees


def render(diff: Diff) -> str:
    """The whole document."""
    base, target = diff.base_side.name, diff.target_side.name
    return page(f"{target} against {base}", _body(diff))


def _body(diff: Diff) -> Iterator[str]:
    sides = (diff.a, diff.b)
    names = [side.name for side in sides]
    yield f'<h1>{visible(diff.target_side.name)} <span class="to">against {visible(diff.base_side.name)}</span></h1>'
    yield f"<p>{visible(diff.sentence)}.</p>"
    if diff.why:
        yield f'<p class="dim">{visible(diff.why)}.</p>'
    summary = diff.summary()
    yield '<div class="tiles">'
    for kind, key, label in (
        ("", "differences", "semantic differences"),
        ("ok", "covered", "covered by blocks"),
        ("todo", "to_write", "to write"),
        ("", "sizes", "sizes that differ"),
    ):
        yield f'<div class="tile {kind}"><b>{summary[key]}</b>{label}</div>'
    yield "</div>"
    yield from _notes(diff)
    yield "<h2>Layers</h2>" + layer_maps(sides)
    yield "<h2>Sizes and cost</h2>"
    yield numbers_table(names, numbers.costs(sides) + numbers.size_rows(diff.of_kind("size")))
    for item in ITEMS:
        rows = [row for row in diff.of_kind("semantic") if row.item == item]
        if rows:
            total = sum(row.counts for row in rows)
            to_write = sum(row.counts and row.missing is not None for row in rows)
            told = f"{total} of which {to_write} to write" if to_write else f"{total}, all covered"
            yield f"<h2>{visible(item[0].upper() + item[1:])}<small>{told}</small></h2>"
            yield from (_row(row, names) for row in rows)
    spelled = diff.of_kind("spelling")
    if spelled:
        yield "<h2>The same, spelled differently</h2>"
        yield numbers_table(names, [(row.field, [text(row.a), text(row.b)]) for row in spelled])
    yield html_trees(sides)


def _notes(diff: Diff) -> Iterator[str]:
    lines = dict.fromkeys((side.name, line) for side in (diff.a, diff.b) for line in (*side.warnings, *side.notes))
    if lines:
        yield '<ul class="notes">'
        yield from (f"<li>{visible(name)}: {visible(line)}</li>" for name, line in lines)
        yield "</ul>"


def _row(row: Row, names: list[str]) -> str:
    done = row.missing is None
    if row.goes_with is not None:
        mark = f'<span class="mark">part of {visible(row.goes_with)}</span>'
    else:
        word = "ok" if done else "todo"
        mark = f'<span class="mark {word}">{"covered" if done else "to write"}</span>'
    chips = "".join(f'<span class="chip">{visible(one)}</span>' for one in row.affects)
    how = f"<code>{visible(row.covered_by or '')}</code>" if done else visible(row.missing or "")
    sides = "".join(
        f'<div class="side"><span class="who">{visible(name)}</span><br>{visible(text(value))}'
        f"<small>{visible(source or '')}</small></div>"
        for name, value, source in zip(names, (row.a, row.b), (row.a_source, row.b_source), strict=True)
    )
    return (
        f'<div class="row"><div class="field"><b>{visible(row.field)}</b>{mark}{chips}</div>{sides}'
        f'<div class="how">{how}</div></div>'
    )
