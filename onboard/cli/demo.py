"""`onboard demo`: the whole way on real weights, from a diff to an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.report.console import Format, FormatOption, print_json


def demo(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="smollm2, gemma3-270m: only serve these, with the reference models."),
    ] = None,
    models: Annotated[
        Path, typer.Option(help="Folder that holds the model folders, the generated package and its installation.")
    ] = Path("models"),
    format: FormatOption = Format.TEXT,
) -> None:
    """Compare two real models, generate a package for one, prove it, serve the real weights with it, and ask.

    SmolLM2 and Gemma 3 270M are compared, a package is made from Gemma 3's own config, held against transformers, and
    served by `vllm serve` through the Neuron plugin. It is installed for this server only: your environment stays as it
    is. On a machine without Neuron devices this switches CPU mode on. Each run makes the package again, edits included.
    """
    from onboard.demo.run import choose_mode, demonstrate, require_plugin
    from onboard.demo.sources import find

    sources = [find(name) for name in names or ()]
    current = choose_mode()
    require_plugin()
    as_json = format is Format.JSON

    def say(text: str) -> None:
        typer.echo(text, nl=False, err=as_json)

    say(f"{current.words}\n\n")
    if sources:
        document = [demonstrate(source, models, current, say).as_dict() for source in sources]
        if as_json:
            print_json(document)
        return
    from onboard.demo.story import tell

    story = tell(models, current, say)
    say(f"Done in {story.seconds:.0f} s. The package is in {story.made.folder}; edit it, and prove it again.\n")
    if as_json:
        print_json(story.as_dict())
