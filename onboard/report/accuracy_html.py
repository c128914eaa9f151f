"""The HTML view of a validation: one file, no network, no script; verdicts, plots, and tables that they lead to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from onboard.report import accuracy_rows as told
from onboard.report import accuracy_svg as svg
from onboard.report.html import numbers_table, page, visible
from vllm_neuron.accuracy.results import BlockResult, LayerResult, LevelResult, Place, PromptResult, Report, TokenRow

# Cells of a heat map in a line, rows of tokens in a table, points of a scatter: what keeps the file small.
COLUMNS, TOKENS, POINTS = 128, 16, 1500
OUTCOMES = {"pass": "ok", "not run": "dim"}
STYLE = (
    svg.STYLE
    + """
.verdict { font-size:1.1rem; font-weight:600; } .verdict.ok { color:var(--ok); } .verdict.todo { color:var(--todo); }
.place { background:var(--todobg); color:var(--todo); border-radius:.5rem; padding:.6rem 1rem; margin:1rem 0; }
.place a { color:inherit; } h3 { font-size:.95rem; margin:1.5rem 0 .25rem; overflow-wrap:anywhere; }
.pair { display:grid; grid-template-columns:minmax(0,1fr) minmax(0,1fr); gap:1.5rem; } .square { max-width:26rem; }
.mark.dim { border:1px solid var(--line); } details { margin:.5rem 0; } summary { cursor:pointer; color:var(--dim); }
a { color:var(--c0); } .tiles a { text-decoration:none; color:inherit; }
table.found th, table.found td { overflow-wrap:normal; }
table.found td:last-child { min-width:16rem; overflow-wrap:anywhere; }
table.found td:first-child { overflow-wrap:anywhere; min-width:4rem; }
tr:target td { background:var(--card); } td.ids { font-variant-numeric:tabular-nums; } .legend { font-size:.8rem; }
@media (max-width:40rem) { .pair { grid-template-columns:1fr; } }
"""
)


def render(report: Report) -> str:
    """The whole document."""
    return page(f"{report.model}: {report.verdict}", _body(report), STYLE)


def _body(report: Report) -> Iterator[str]:
    yield f'<h1>Accuracy of {visible(report.model)} <span class="to">on {visible(report.target)}</span></h1>'
    yield f'<p class="verdict {_kind(report.outcome)}">{visible(report.verdict)}</p>'
    if report.place is not None:
        yield _place(report.place)
    yield '<div class="tiles">'
    for level in report.levels:
        kind, anchor = _kind(level.outcome), f"level-{level.level}"
        words = visible(told.title(level))
        yield f'<a href="#{anchor}"><div class="tile {kind}"><b>{visible(level.outcome)}</b>{words}</div></a>'
    yield "</div>"
    yield _notes(report.notes)
    yield numbers_table(["run"], [(name, [value]) for name, value in told.facts(report)])
    for level in report.levels:
        yield from _level(level)


def _level(level: LevelResult) -> Iterator[str]:
    seconds = f"<small>{level.seconds:.1f} s</small>"
    yield f'<h2 id="level-{level.level}">{visible(told.title(level))} {_mark(level.outcome)}{seconds}</h2>'
    yield f"<p>{visible(level.verdict)}</p>"
    if level.place is not None:
        yield _place(level.place)
    yield _notes(level.notes)
    if level.coverage or level.not_covered:
        chips = "".join(f'<span class="chip">{visible(each)}</span> ' for each in level.coverage)
        missing = "".join(f'<span class="mark todo">not covered: {visible(each)}</span> ' for each in level.not_covered)
        yield f"<p>{chips}{missing}</p>"
    if level.tasks:
        yield _table(told.TASK_HEAD, [(told.task_cells(t), "", t.passed) for t in level.tasks])
        for task in level.tasks:
            yield _notes([f"{task.task}: {note}" for note in task.notes])
    if level.blocks:
        yield from _blocks(level.blocks)
    if level.prompts:
        rows = [(told.prompt_cells(p), _anchor(i), p.passed) for i, p in enumerate(level.prompts)]
        yield _table(told.PROMPT_HEAD, rows, link=True)
        for index, prompt in enumerate(level.prompts):
            yield from _prompt(_anchor(index), prompt)


def _blocks(blocks: Sequence[BlockResult]) -> Iterator[str]:
    """For each dtype a map of layers by kinds of block, then the tables that its lines lead to."""
    kinds = list(dict.fromkeys((b.block, b.dtype, b.phase) for b in blocks))
    layers = list(dict.fromkeys(b.layer for b in blocks))
    every = max(1, len(layers) // 16)
    names = ["-" if layer is None else str(layer) if i % every == 0 else "" for i, layer in enumerate(layers)]
    by_place = {(b.layer, b.block, b.dtype, b.phase): b for b in blocks}
    for dtype in dict.fromkeys(kind[1] for kind in kinds):
        rows = []
        for number, kind in enumerate(kinds):
            if kind[1] == dtype:
                found = [by_place.get((layer, *kind)) for layer in layers]
                words = f"{' '.join(kind)}: {sum(b is not None for b in found)} layers"
                rows.append(svg.HeatRow(f"{kind[0]} {kind[2]}", f"blocks-{number}", words, [_ratio(b) for b in found]))
        what = "within its bar, or red" if dtype == "float32" else "error over that of Hugging Face in bf16"
        yield f"<h3>{visible(dtype)}: {what}, by layer</h3>"
        yield svg.heat(rows, names, label=f"{dtype}: kinds of block by layers", scale=dtype != "float32")
    for number, kind in enumerate(kinds):
        cells = [(told.block_cells(b), "", b.passed) for b in blocks if (b.block, b.dtype, b.phase) == kind]
        bad = sum(not passed for *_, passed in cells)
        opened = " open" if bad else ""
        summary = f"{' '.join(kind)}: {len(cells)} comparisons, {bad} not passed"
        yield f'<details id="blocks-{number}"{opened}><summary>{visible(summary)}</summary>'
        yield _table(told.BLOCK_HEAD, cells) + "</details>"


def _ratio(block: BlockResult | None) -> float:
    if block is None or block.outcome == "not run":
        return math.nan
    if not block.passed:
        return math.inf
    return block.comparison.rms_ratio if block.comparison is not None else 0.0


def _prompt(anchor: str, prompt: PromptResult) -> Iterator[str]:
    name = f"{visible(prompt.name)} {_mark(prompt.outcome)}"
    cut = ' <span class="mark todo">partial</span>' if prompt.partial else ""
    yield f'<h3 id="{anchor}">{name}{cut}</h3><p>{visible(prompt.verdict)}</p>'
    if prompt.place is not None:
        yield _place(prompt.place)
    yield "<p>" + " ".join(f'<span class="chip">{visible(each)}</span>' for each in prompt.coverage) + "</p>"
    yield _notes(prompt.notes)
    if prompt.outcome == "refused":
        yield _ids(prompt)
    if prompt.rows:
        yield from _curves(anchor, prompt)
    points = prompt.scatter[:: max(1, -(-len(prompt.scatter) // POINTS))]
    plots = [
        svg.scatter(
            points, names=("gold", "target", "Hugging Face bf16"), label="logits of the target against the gold"
        )
    ]
    yield f'<div class="pair"><div>{plots[0]}</div><div>{_comparison(prompt)}</div></div>' if plots[0] else ""
    if prompt.layers:
        yield from _layers(anchor, prompt.layers)
    if prompt.rows:
        yield _tokens(anchor, prompt)


def _curves(anchor: str, prompt: PromptResult) -> Iterator[str]:
    rows = prompt.rows
    shown = {row.position for row in told.telling(prompt, TOKENS)}
    marks = [
        svg.Mark(i, _token(anchor, row), f"position {row.position}: {row.verdict}", not row.passed)
        for i, row in enumerate(rows)
        if row.position in shown and (row.near_tie or not row.passed)
    ]
    start = rows[0].position
    if any(row.rms or row.baseline_rms for row in rows):
        yield "<p>RMS error of the logits at each position</p>"
        errors = [svg.Series("target", 0, [r.rms for r in rows])]
        errors.append(svg.Series("Hugging Face bf16", 1, [r.baseline_rms for r in rows]))
        yield svg.curves(errors, start=start, label="RMS error against position", marks=marks)
    yield "<p>KL divergence from the gold at each position, nats</p>"
    divergence = [svg.Series("target", 0, [r.kl for r in rows])]
    divergence.append(svg.Series("Hugging Face bf16", 1, [r.baseline_kl for r in rows]))
    yield svg.curves(divergence, start=start, label="KL divergence against position", marks=marks)
    decoded = next((r.position for r in rows if r.phase == "decode"), None)
    if decoded is not None:
        yield f'<p class="dim">Decoded from position {decoded} on.</p>'


def _comparison(prompt: PromptResult) -> str:
    found = prompt.logits
    if found is None:
        return ""
    sides = [side for side in (found.target, found.baseline) if side is not None]
    rows: list[tuple[str, list[str]]] = [
        (name, [told.number(getattr(side, key)) for side in sides])
        for name, key in (("RMS", "rms"), ("largest", "linf"), ("mean", "bias"), ("relative RMS", "relative"))
    ]
    ratios = [("RMS ratio", found.rms_ratio), ("largest ratio", found.linf_ratio), ("L2 ratio", found.l2_ratio)]
    rows += [(name, [told.number(value)]) for name, value in [*ratios, ("Bhattacharyya coefficient", found.bc)]]
    if found.worst is not None:
        worst = found.worst
        values = (told.number(v, 6) for v in (worst.target, worst.expected, worst.baseline))
        words = "target {}, gold {}, bf16 {}".format(*values)
        rows.append((f"worst at {worst.index}", [words]))
    return numbers_table(["target", "Hugging Face bf16"], rows)


def _layers(anchor: str, layers: Sequence[LayerResult]) -> Iterator[str]:
    """Heat map of layers by positions, then the table that its lines lead to."""
    rows = []
    for layer in layers:
        pairs = zip(layer.errors, layer.baseline_errors, strict=False)
        ratios = [_over(error, beside) for error, beside in pairs]
        words = f"layer {layer.layer}, {layer.kind}: {layer.verdict}"
        rows.append(
            svg.HeatRow(f"{layer.layer} {layer.kind}", f"{anchor}-layer-{layer.layer}-{layer.kind}", words, ratios)
        )
    longest = max((len(row.ratios) for row in rows), default=0)
    start = min((layer.start for layer in layers), default=0)
    size = max(1, -(-longest // COLUMNS))
    binned = [row._replace(ratios=svg.binned(_behind(row.ratios, longest), COLUMNS)) for row in rows]
    columns = -(-longest // size)
    every = max(1, columns // 8)
    names = [str(start + i * size) if i % every == 0 else "" for i in range(columns)]
    if longest:
        yield "<p>Error over that of Hugging Face in bf16, layers by positions</p>"
        yield svg.heat(binned, names, label="ratio of errors, layers by positions")
    head = ("layer", "tensor", "RMS", "HF bf16 RMS", "ratio", "BC", "verdict")
    lines = []
    for layer in layers:
        for index, each in enumerate(layer.tensors):
            cells = (str(layer.layer), each.name, *told.comparison_cells(each), each.verdict)
            lines.append((cells, f"{anchor}-layer-{layer.layer}-{layer.kind}" if index == 0 else "", each.passed))
    opened = " open" if any(not layer.passed for layer in layers) else ""
    yield f"<details{opened}><summary>{len(layers)} layers</summary>{_table(head, lines)}</details>"


def _over(error: float, beside: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / beside if beside > 0 else (1.0 if error == 0 else math.inf)


def _behind(ratios: Sequence[float], longest: int) -> list[float]:
    """A window keeps the last positions: what is missing stands in front."""
    return [math.nan] * (longest - len(ratios)) + list(ratios)


def _tokens(anchor: str, prompt: PromptResult) -> str:
    rows = told.telling(prompt, TOKENS)
    head = ("position", "phase", "gold", "target", "Hugging Face bf16", "KL", "rank of the text's token", "verdict")
    lines = []
    for row in rows:
        rank = "-" if row.gold_rank is None else f"{row.gold_rank} (gold {row.expected_rank})"
        tops = (told.candidates(tops) for tops in (row.expected_top, row.target_top, row.baseline_top))
        cells = (str(row.position), row.phase, *tops, told.number(row.kl), rank, row.verdict)
        lines.append((cells, _token(anchor, row), row.passed))
    opened = " open" if any(row.near_tie or not row.passed for row in rows) else ""
    title = f"{len(rows)} of {len(prompt.rows)} positions: what fails, near ties, the largest divergences"
    return f"<details{opened}><summary>{title}</summary>{_table(head, lines)}</details>"


def _ids(prompt: PromptResult) -> str:
    return numbers_table(
        ["ids"],
        [("asked for", [", ".join(map(str, prompt.ids))]), ("ran", [", ".join(map(str, prompt.seen_ids)) or "none"])],
    )


def _table(head: Sequence[str], rows: Iterable[tuple[Sequence[str], str, bool]], *, link: bool = False) -> str:
    """Rows of cells, an anchor, and whether it passed; with ``link`` the first cell leads to the anchor."""
    lines = []
    for cells, anchor, passed in rows:
        shown = [f"<td>{visible(cell)}</td>" for cell in cells]
        if link and anchor:
            shown[0] = f'<td><a href="#{visible(anchor)}">{visible(cells[0])}</a></td>'
        if not passed:
            kind = "dim" if cells[-1].startswith("not run") else "todo"
            shown[-1] = f'<td><span class="mark {kind}">{visible(cells[-1])}</span></td>'
        name = f' id="{visible(anchor)}"' if anchor and not link else ""
        lines.append(f"<tr{name}>{''.join(shown)}</tr>")
    heading = "".join(f"<th>{visible(cell)}</th>" for cell in head)
    return f'<div class="scroll"><table class="numbers found"><tr>{heading}</tr>{"".join(lines)}</table></div>'


def _place(place: Place) -> str:
    names = f"<code>{visible(place.ours)}</code> against <code>{visible(place.theirs)}</code>"
    return (
        f'<div class="place"><b>{visible(place.words())}</b>, {visible(place.kind)}: {names}'
        f"<br>{visible(place.evidence)}</div>"
    )


def _notes(lines: Sequence[str]) -> str:
    return '<ul class="notes">' + "".join(f"<li>{visible(line)}</li>" for line in lines) + "</ul>" if lines else ""


def _mark(outcome: str) -> str:
    return f'<span class="mark {_kind(outcome)}">{visible(outcome)}</span>'


def _kind(outcome: str) -> str:
    return OUTCOMES.get(outcome, "todo")


def _anchor(index: int) -> str:
    return f"prompt-{index}"


def _token(anchor: str, row: TokenRow) -> str:
    return f"{anchor}-token-{row.position}"
