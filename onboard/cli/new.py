"""`onboard new`: a working, proved package from a model's config."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, print_json
from onboard.report.mode import PROOF

if TYPE_CHECKING:
    from onboard.scaffold.new import Made

DEFAULT_SOURCE = "meta-llama/Llama-3.2-1B"
DEFAULT_NAME = "mymodel"


def new(
    name: Annotated[str | None, typer.Argument(help="Name of the package: letters, digits, - and _.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="A model id, a folder, a config.json or a model type (qwen3)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="The package's folder. Default: NAME.")
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(help="Class name for a config that names none, e.g. LlamaForCausalLM.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove the package once it is written.")] = True,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write again what an earlier run wrote, edits included; other files stay."),
    ] = False,
    defaults: Annotated[bool, typer.Option("--defaults", help="Ask nothing: defaults for what is not given.")] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write a model package from a config, and prove that it computes what transformers computes.

    The package appears whole or not at all. No code of a model's repository is run, and nothing of this project is
    edited. Exit code 0: proved (or written, with --no-verify); 4: parts are left open by name; 5: a check disagrees.
    """
    name, source, verify = _asked(name, source, verify, quiet=defaults)
    from onboard.scaffold.new import make

    made = make(name, source, output, architecture=architecture, force=force)
    document: dict[str, Any] = {**made.to_json(), "verdict": None, "proof": None}
    code = Exit.OPEN if made.answers.code.open else Exit.OK
    if format is Format.TEXT:
        _show(made)
    if verify:
        from onboard.cli.verify import EXITS, verified

        if format is Format.TEXT:
            typer.echo(PROOF.words)
        proof = verified(made.folder, show=format is Format.TEXT)
        document |= {"verdict": proof.verdict.value, "proof": proof.to_json()}
        document |= {"mode": PROOF.name, "mode_words": PROOF.words}
        code = EXITS[proof.verdict.value]
    if format is Format.JSON:
        print_json(document)
    else:
        typer.echo(f"\nNext: {_next(made.folder, code, verify)}")
    if code != Exit.OK:
        raise typer.Exit(code)


def _asked(name: str | None, source: str | None, verify: bool, *, quiet: bool) -> tuple[str, str, bool]:
    """The name, the source and whether to prove, asked for where they are missing and somebody can answer."""
    if quiet:
        return name or DEFAULT_NAME, source or DEFAULT_SOURCE, verify
    if source is not None and name is not None:
        return name, source, verify
    missing = "--from" if source is None else "NAME"
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"is missing, and there is no terminal to ask at: give it, or --defaults ({_default(missing)})",
            param_hint=missing,
        )
    if name is None:
        name = typer.prompt("Name of the package", default=DEFAULT_NAME, err=True)
    if source is None:
        source = typer.prompt(
            "Model (an id, a folder, a config.json or a model type)", default=DEFAULT_SOURCE, err=True
        )
        verify = typer.confirm("Prove it now", default=verify, err=True)
    return name, source, verify


def _default(missing: str) -> str:
    return DEFAULT_SOURCE if missing == "--from" else DEFAULT_NAME


def _show(made: Made) -> None:
    code = made.answers.code
    typer.echo(f"{made.answers.names.package}: {code.architecture} from {made.answers.origin.label}")
    width = max((len(feature) for feature, _ in code.detected), default=0)
    for feature, value in code.detected:
        typer.echo(f"  {feature:<{width}}  {value}")
    for item in code.open:
        typer.echo(f"  open: {item.feature} ({item.hf_class}{f', {item.source}' if item.source else ''})")
    for warning in made.warnings:
        typer.echo(f"{typer.style('warning', fg=typer.colors.YELLOW)}: {warning}", err=True)
    typer.echo(f"written: {made.folder} ({len(made.files)} files)\n")


def _next(folder: Path, code: Exit, verified: bool) -> str:
    if code is Exit.OPEN:
        return f"write what is open (see {folder}/README.md), then `onboard verify {folder}`"
    if code is Exit.FAILED:
        return f"mend {folder}/src at the first divergence, then `onboard verify {folder}`"
    return f"pip install -e {folder}" if verified else f"onboard verify {folder} && pip install -e {folder}"
