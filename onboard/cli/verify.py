"""`onboard verify`: prove that a package computes what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, Progress, print_json

if TYPE_CHECKING:
    from onboard.prove import Proof

# Verdict -> exit code.
EXITS = {"proved": Exit.OK, "open": Exit.OPEN, "failed": Exit.FAILED}


def verify(
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE", help="A package's folder, or an importable module such as reference_models.llama3."
        ),
    ],
    engine: Annotated[bool, typer.Option("--engine", help="Also serve it with vLLM once (about 15 s).")] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Account for every tensor of the real model by its headers or index alone."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="blocks, whole, cache, ranks, engine or checkpoint; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and inputs; 7919 by default.")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Prove a package by numbers: block by block, as a whole, with the cache, from a checkpoint, on 1, 2 and 4 ranks.

    The reference is a tiny random model of transformers in float32; the bar is a relative error of 1e-5. The evidence
    goes into the package's README. Exit code 0 when proved, 4 when features are open by name, 5 when a check fails.
    """
    from onboard.prove.run import check_kinds

    chosen = check_kinds(only or [])
    if "checkpoint" in chosen and checkpoint is None:
        raise typer.BadParameter("it needs --checkpoint DIR", param_hint="--only checkpoint")
    options: dict[str, Any] = {"engine": engine or "engine" in chosen, "checkpoint": checkpoint, "only": chosen}
    if seed is not None:
        options["seed"] = seed
    proof = verified(package, show=format is Format.TEXT, **options)
    if format is Format.JSON:
        print_json(proof.to_json())
    code = EXITS[proof.verdict.value]
    if code is not Exit.OK:
        raise typer.Exit(code)


def verified(package: str | Path, *, show: bool, **options: Any) -> Proof:
    """Prove a package under a progress bar, write the evidence into its README, and print the proof if asked to.

    Args:
        package: folder or module.
        show: print the terminal view.
        options: of :func:`onboard.prove.prove`.
    """
    from onboard.prove import Package, prove
    from onboard.prove.evidence import write_evidence

    with Progress().track() as progress:
        loaded = Package.load(package)
        proof = prove(loaded, progress=progress, **options)
    written = write_evidence(loaded, proof)
    if show:
        from onboard.report import proof_text
        from onboard.report.terminal import console

        proof_text.show(proof, console())
        if written:
            typer.echo(f"evidence: {loaded.folder / 'README.md'}")
    return proof
