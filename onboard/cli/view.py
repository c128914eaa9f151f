"""Options that `diff` and `inspect` share, and the one way out for their views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer


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


@contextmanager
def waiting(structure: bool) -> Iterator[None]:
    """Shows on a terminal that transformers is at work, which takes a while."""
    if not structure:
        yield
        return
    from onboard.report.console import Progress

    with Progress().step("building in transformers"):
        yield


class Document(Protocol):
    """What has a published JSON shape."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        ...


def emit(view: View, output: Path | None, views: str, found: Document) -> None:
    """Render one view of ``found`` and put it where it was asked for.

    Args:
        view: which one.
        output: a file, or None for stdout.
        views: prefix of the modules that hold the views: ``{views}_text.show(found, console)``,
            ``{views}_markdown.render(found)`` and ``{views}_html.render(found)``; only the needed one is loaded.
        found: what is shown.
    """
    from onboard.report.write import put

    if view is View.JSON:
        put(json.dumps(found.to_json(), indent=2, allow_nan=False), output)
        return
    module = import_module(f"{views}_{view.value}")
    if view is not View.TEXT:
        put(module.render(found), output)
        return
    from onboard.report.terminal import console

    made = console(to_file=output is not None)
    with made:
        module.show(found, made)
    if isinstance(made.file, StringIO):
        put(made.file.getvalue(), output)
