"""`onboard demo`: two real models, served through the plugin and asked a question each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.report.console import Format, FormatOption, print_json


def demo(
    names: Annotated[list[str] | None, typer.Argument(help="smollm2, gemma3-270m; both when none is named.")] = None,
    models: Annotated[Path, typer.Option(help="Folder that holds the model folders.")] = Path("models"),
    format: FormatOption = Format.TEXT,
) -> None:
    """Serve real weights through the Neuron plugin with `vllm serve`, and ask each model a question.

    On a machine without Neuron devices this switches CPU mode on.
    """
    from onboard.demo.run import choose_mode, demonstrate, require_plugin
    from onboard.demo.sources import SOURCES, find

    sources = [find(name) for name in names or SOURCES]
    current = choose_mode()
    require_plugin()
    as_json = format is Format.JSON

    def say(text: str) -> None:
        typer.echo(text, nl=False, err=as_json)

    say(f"{current.words}\n\n")
    shown = [demonstrate(source, models, current, say) for source in sources]
    if as_json:
        print_json([part.as_dict() for part in shown])
