"""`onboard catalog`: the well-known models whose architecture is bundled."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from onboard.report.console import Format, FormatOption, print_json

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _catalog() -> None:
    """Well-known models whose architecture is bundled, so that they need no network."""


@app.command("list")
def list_(
    pattern: Annotated[str, typer.Argument(help="Only names that contain this, in any case.")] = "",
    format: FormatOption = Format.TEXT,
) -> None:
    """List the models, one a line: name, model type, and how sure the source is."""
    from onboard import catalog

    entries = [catalog.entry(name) for name in catalog.names() if pattern.lower() in name.lower()]
    if format is Format.JSON:
        print_json([{"name": e.name, "model_type": e.model_type, "confidence": e.confidence} for e in entries])
        return
    width = max((len(e.name) for e in entries), default=0)
    kind = max((len(e.model_type) for e in entries), default=0)
    for e in entries:
        typer.echo(f"{e.name:<{width}}  {e.model_type:<{kind}}  {e.confidence}")
    if not entries:
        typer.echo(f"No name contains {pattern!r}; `onboard catalog list` shows all {len(catalog.names())}.", err=True)


@app.command()
def show(
    model: Annotated[str, typer.Argument(help="A name from the list.")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Show what the catalog holds of one model; `onboard inspect` shows what follows from it."""
    import dataclasses

    from onboard import catalog

    entry = catalog.entry(model)
    document: dict[str, Any] = dataclasses.asdict(entry)
    if format is Format.JSON:
        print_json(document)
        return
    fields = document.pop("fields")
    for name, value in document.items():
        typer.echo(f"{name:<14} {_line(value)}")
    typer.echo("fields")
    for name, value in fields.items():
        typer.echo(f"  {name} = {_line(value)}")


def _line(value: Any) -> str:
    import json

    from onboard.catalog import compact

    if isinstance(value, tuple | list):
        value = compact(list(value))
    return value if isinstance(value, str) else json.dumps(value)
