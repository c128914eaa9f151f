"""`onboard replay`: one recorded step of a served model, run again outside of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, print_json


def replay(
    folder: Annotated[
        Path, typer.Argument(help="A step's folder that neuron_config.input_snapshot wrote, with rank0 in it.")
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The checkpoint; by default the one that the snapshot names.")
    ] = None,
    package: Annotated[
        str | None, typer.Option(metavar="PACKAGE", help="A package's folder or module; else the registered one.")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Run the step again on its recorded inputs and compare hidden states and logits bit by bit.

    Weights and versions must be those of the recorded run. Another package than the one that ran shows what an edit
    changes. Exit code 0 when every tensor is equal, 5 when one differs, 4 when nothing was recorded to compare with.
    """
    from onboard.report.capture_text import replay_lines
    from vllm_neuron.snapshot.replay import replay as run_again

    factory = None
    if package is not None:
        from onboard.prove.package import Package

        factory = Package.load(package).factory
    found = run_again(folder, model=model, factory=factory)
    if format is Format.JSON:
        print_json(found.to_json())
    else:
        for line in replay_lines(found):
            typer.echo(line)
    if not found.tensors:
        return Exit.OPEN
    return Exit.OK if found.bitwise else Exit.FAILED
