"""`onboard diff`: what is different about a model, and what a port of it has to write."""

from __future__ import annotations

from typing import Annotated

import typer

from onboard.cli.exits import Exit
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


def diff(
    a: Annotated[
        str | None, typer.Argument(help="A model id, a folder or a config.json: the model known already.")
    ] = None,
    b: Annotated[
        str | None, typer.Argument(help="The model to port. Without it, A is held against a reference.")
    ] = None,
    format: ViewOption = View.TEXT,
    output: OutputOption = None,
    spelling: Annotated[bool, typer.Option("--spelling", help="Also list what is only written differently.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when the models differ.")] = False,
    revision: RevisionOption = None,
    revision_b: Annotated[str | None, typer.Option(help="The same for B.")] = None,
    architecture: ArchitectureOption = None,
    architecture_b: Annotated[str | None, typer.Option(help="The same for B.")] = None,
    structure: StructureOption = False,
    schema_: SchemaOption = False,
) -> None:
    """Compare two models by the eight items of the porting checklist.

    Each row says where both values came from, what the difference touches, and which building block covers it, or what
    has to be written. With one model, the nearest reference model takes the place of the second.
    """
    if schema_:
        typer.echo(schema("diff").rstrip())
        return
    if a is None:
        raise typer.BadParameter(
            "one or two models are needed, e.g. onboard diff meta-llama/Llama-3.1-8B", param_hint="A"
        )
    if b is None and (revision_b or architecture_b):
        raise typer.BadParameter("there is no B that it could apply to", param_hint="--revision-b, --architecture-b")
    from onboard.diff.session import compare

    with waiting(structure):
        found = compare(
            (a, revision, architecture), (b, revision_b, architecture_b) if b else None, spelling, structure
        )

    emit(format, output, "onboard.report.diff", found)
    if exit_code and found.differs:
        raise typer.Exit(Exit.FINDINGS)
