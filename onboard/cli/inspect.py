"""`onboard inspect`: one model's architecture, exact parameter counts and cache cost."""

from __future__ import annotations

from typing import Annotated

import typer

from onboard.cli.view import (
    ArchitectureOption,
    OutputOption,
    RevisionOption,
    SchemaOption,
    StructureOption,
    View,
    ViewOption,
    emit,
    schema,
    waiting,
)


def inspect(
    model: Annotated[str | None, typer.Argument(help="A model id, a folder or a config.json.")] = None,
    format: ViewOption = View.TEXT,
    output: OutputOption = None,
    revision: RevisionOption = None,
    architecture: ArchitectureOption = None,
    structure: StructureOption = False,
    schema_: SchemaOption = False,
) -> None:
    """Show one model: its layers, every value with its source, and what follows from them.

    Parameters are counted exactly from the architecture; nothing is downloaded beyond the config, and code of a
    repository is never run.
    """
    if schema_:
        typer.echo(schema("inspect").rstrip())
        return
    if model is None:
        raise typer.BadParameter("a model is needed, e.g. onboard inspect google/gemma-3-27b-it", param_hint="MODEL")
    from onboard.diff.session import look

    with waiting(structure):
        found = look((model, revision, architecture), structure)
    emit(format, output, "onboard.report.inspect", found)
