"""`onboard bisect`: the first guilty module of a package on a real checkpoint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, Progress, print_json

# Outcome -> exit code.
EXITS = {"pass": Exit.OK, "not run": Exit.OPEN, "fail": Exit.FAILED, "refused": Exit.BAD_INPUT}


class Dtype(StrEnum):
    """What `--dtype` takes."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    BOTH = "both"


def bisect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, with weights and tokenizer.")],
    package: Annotated[
        str | None, typer.Option(metavar="P", help="A package's folder or module; default: the registered one.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .txt file, a prompt a line, or .jsonl. Default: our own.")
    ] = None,
    dtype: Annotated[
        Dtype, typer.Option(help="float32 finds wrong mathematics, bfloat16 what goes wrong in rounding.")
    ] = Dtype.BOTH,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens of the longest prompt.")] = 640,
    format: FormatOption = Format.TEXT,
) -> None:
    """Name the first module of a package that is wrong by itself: layer, block, part, and the phase in which it shows.

    The package and Hugging Face run the same prompts: whole, padded, token by token, in chunks, batched, and on several
    ranks (threads of this process). Where they part, each block is given the reference's input, so that a block that is
    wrong is told from one whose input is. Exit code 0 when nothing is wrong, 5 when a module is named.
    """
    from onboard.checks.bisect import Request
    from onboard.checks.bisect import bisect as search
    from onboard.report.bisect_text import show
    from onboard.report.terminal import console

    dtypes = ("float32", "bfloat16") if dtype is Dtype.BOTH else (dtype.value,)
    with Progress().track() as say:
        found = search(Request(model, package, prompts, dtypes, max_length), say)
    if format is Format.JSON:
        print_json(found.to_json())
    else:
        show(found, console())
    code = EXITS[found.outcome]
    if code is not Exit.OK:
        raise typer.Exit(code)
