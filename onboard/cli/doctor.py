"""`onboard doctor`: why the plugin is or is not active."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, mark, print_json


def doctor(
    model: Annotated[Path | None, typer.Argument(help="Also look up the architecture of this model folder.")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Explain why the Neuron plugin is or is not active, and what to set.

    Plugins and model packages are tried in fresh processes, as vLLM's own are. Exit code 5 when something is wrong.
    """
    from onboard.checks.doctor import diagnose

    diagnosis = diagnose(model)
    if format is Format.JSON:
        print_json(diagnosis.as_dict())
    else:
        for finding in diagnosis.findings:
            typer.echo(f"{mark(finding.status)} {finding.check}: {finding.message}")
            if finding.action:
                typer.echo(f"      -> {finding.action}")
        verdict = (
            "The plugin is active." if diagnosis.active else "The plugin does not work here: see the errors above."
        )
        typer.echo(f"\n{verdict} Mode: {diagnosis.mode.words}.")
    if not diagnosis.active:
        raise typer.Exit(Exit.FAILED)
