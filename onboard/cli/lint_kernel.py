"""`onboard lint-kernel`: what the NKI compiler would refuse in a kernel, found without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, mark, print_json


def lint_kernel(
    file: Annotated[Path, typer.Argument(help="A Python file with kernels (functions under @nki.jit).")],
    nki: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Check for one NKI version, as 0.6; default: all from 0.3.")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> int:
    """Report Python and NKI names that the compiler refuses in a kernel, with file, line and rule.

    Exit code 1 when there is an error; warnings alone are 0. The rules are those that public sources name: a kernel
    without findings may still be refused.
    """
    from dataclasses import asdict

    from vllm_neuron.nki.lint import lint_file, parse_version

    report = lint_file(file, None if nki is None else parse_version(nki))
    if format is Format.JSON:
        print_json({**asdict(report), "errors": report.errors, "warnings": report.warnings})
    else:
        for f in report.findings:
            status = mark("error" if f.severity == "error" else "warn")
            typer.echo(f"{f.path}:{f.line}:{f.column}: {status} {f.rule}: {f.text}. {f.action}")
            typer.echo(f"    NKI {f.versions}; source: {f.source}")
        checked = f"{_count(len(report.kernels), 'kernel')}, {_count(len(report.functions), 'function')} checked"
        typer.echo(f"{checked}: {_count(report.errors, 'error')}, {_count(report.warnings, 'warning')}")
        if report.elsewhere:
            typer.echo(f"not checked, their files were not found: {', '.join(report.elsewhere)}")
    return Exit.FINDINGS if report.errors else Exit.OK


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
