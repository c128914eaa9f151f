"""`onboard update`: a package rendered anew, merged with what its user made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.report.console import Format, FormatOption, print_json


def update(
    package: Annotated[Path, typer.Argument(help="Folder of a package that `onboard new` made.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="MODEL", help="Another model than the one that it was made from.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
    format: FormatOption = Format.TEXT,
) -> None:
    """Render a package again and merge that into your edits, when templates or facts have moved.

    A three-way merge of each file: as it was rendered, as you have it, as it is rendered now. Your edits are kept;
    where both sides changed the same lines, the file holds both between conflict markers, and file:line is listed. All
    files change together or none does. Exit code 0: merged, or nothing to do; 4: conflicts are left to resolve.
    """
    from onboard.scaffold.update import update as merge

    done = merge(package, source, dry_run=dry_run)
    if format is Format.JSON:
        print_json(done.to_json())
    else:
        for change in done.changes:
            note = f"  ({change.note})" if change.note else ""
            for place in [f"{change.file}:{line}" for line in change.lines] or [change.file]:
                typer.echo(f"{change.what:<9} {place}{note}")
        typer.echo(_summary(len(done.changes), len(done.conflicts), dry_run))
    if done.conflicts:
        raise typer.Exit(Exit.OPEN)


def _summary(changes: int, conflicts: int, dry_run: bool) -> str:
    if not changes:
        return "Up to date."
    text = f"{changes} {'file' if changes == 1 else 'files'} {'would change' if dry_run else 'changed'}."
    if conflicts:
        text += f" Resolve {conflicts} conflict{'' if conflicts == 1 else 's'}, then run `onboard verify`."
    elif not dry_run:
        text += " Run `onboard verify` again."
    return text
