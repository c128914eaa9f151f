"""Options that `diff` and `inspect` share, and the one way out for their views."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


class View(StrEnum):
    """How a model or a diff is shown."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


ViewOption = Annotated[View, typer.Option("--format", help="text for people, json for programs, or a document.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, which appears whole or not at all."),
]
RevisionOption = Annotated[
    str | None, typer.Option(help="Branch, tag or commit on the hub; skips the catalog, which knows no revisions.")
]
ArchitectureOption = Annotated[
    str | None, typer.Option(help="Class name for a config that names none, e.g. LlamaForCausalLM.")
]
StructureOption = Annotated[
    bool, typer.Option("--structure", help="Add the module tree that transformers builds (slow; needs transformers).")
]
SchemaOption = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of --format json and exit.")]


def schema(name: str) -> str:
    """The text of a published JSON schema."""
    import onboard.report

    return (Path(onboard.report.__file__).parent / f"{name}.schema.json").read_text(encoding="utf-8")


def emit(
    view: View,
    output: Path | None,
    *,
    document: Callable[[], Any],
    text: Callable[[Console], None],
    markdown: Callable[[], str],
    html: Callable[[], str],
) -> None:
    """Render one view and put it where it was asked for; the other views are not made."""
    from onboard.report.write import put

    if view is View.TEXT:
        from onboard.report.terminal import console

        made = console(to_file=output is not None)
        text(made)
        if isinstance(made.file, StringIO):
            put(made.file.getvalue(), output)
    elif view is View.JSON:
        put(json.dumps(document(), indent=2, allow_nan=False), output)
    else:
        put(markdown() if view is View.MARKDOWN else html(), output)
