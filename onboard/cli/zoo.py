"""`onboard zoo`: every decoder of the installed transformers, generated and proved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, Progress, print_json

if TYPE_CHECKING:
    from onboard.zoo.row import Row


def zoo(
    only: Annotated[str, typer.Option(metavar="A,B", help="Only these model types.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Models at a time; about 1 GB and one core each.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Keep results that an earlier run left in DIR.")] = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Also flip the reference's parts; the proof has to find each flip.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Holds a result, a log and a package of each model.")
    ] = Path("onboard-zoo"),
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For each model.")] = 900.0,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table there: Markdown for .md, else JSON.")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write and prove a package for each decoder-only language model of the installed transformers.

    Exit code 0: all proved; 4: some leave parts open by name; 5: some disagree, are refused, or a flip was not found.
    """
    from onboard.zoo.decoders import chosen
    from onboard.zoo.row import document, markdown
    from onboard.zoo.runner import command, run_all

    models = chosen(name.strip() for name in only.split(",") if name.strip())
    if output is not None and not output.resolve().parent.is_dir():
        raise typer.BadParameter(f"{output.parent} is no folder", param_hint="--output")
    with Progress().track() as progress:
        line = command(self_test)
        rows = run_all(models, folder, jobs=jobs, resume=resume, line=line, timeout=timeout, progress=progress)
    if output is not None:
        text = markdown(rows) if output.suffix == ".md" else json.dumps(document(rows), indent=2) + "\n"
        output.write_text(text, encoding="utf-8")
    if format is Format.JSON:
        print_json(document(rows))
    else:
        _show(rows)
    code = exit_code(rows)
    if code is not Exit.OK:
        raise typer.Exit(code)


def exit_code(rows: Sequence[Row]) -> Exit:
    """From the worst row."""
    if any(row.verdict not in ("proved", "open") or row.missed for row in rows):
        return Exit.FAILED
    return Exit.OPEN if any(row.verdict == "open" for row in rows) else Exit.OK


def _show(rows: Sequence[Row]) -> None:
    from onboard.zoo.row import error_of, notes, summary

    width = max((len(row.model_type) for row in rows), default=0)
    for row in rows:
        typer.echo(f"{row.model_type:<{width}}  {row.verdict:<8} {error_of(row):>8}  {notes(row)}".rstrip())
    typer.echo(f"\n{summary(rows)}")
