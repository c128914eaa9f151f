"""Plain values pass without typer's adapters; everything else is still checked by typer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from onboard.cli.coercion import without_adapters


class Colour(StrEnum):
    RED = "red"


seen: dict[str, Any] = {}


def paint(
    name: str,
    colour: Colour = Colour.RED,
    to: Path | None = None,
    times: Annotated[int, typer.Option(min=1)] = 1,
    tags: Annotated[list[str] | None, typer.Option()] = None,
    loud: bool = False,
) -> None:
    seen.update(name=name, colour=colour, to=to, times=times, tags=tags, loud=loud)


@pytest.fixture
def command() -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(paint)
    built = typer.main.get_command(app)
    without_adapters(built)
    return built


def call(command: Any, *args: str) -> int:
    seen.clear()
    try:
        result = command(list(args), standalone_mode=False)
    except typer.exceptions.TyperException:
        return 2
    return result or 0


def test_values_arrive_with_their_types(command: Any) -> None:
    assert (
        call(command, "x", "--colour", "red", "--to", "a/b", "--times", "3", "--tags", "p", "--tags", "q", "--loud")
        == 0
    )
    assert seen == {"name": "x", "colour": Colour.RED, "to": Path("a/b"), "times": 3, "tags": ["p", "q"], "loud": True}
    assert isinstance(seen["colour"], Colour)


def test_defaults(command: Any) -> None:
    assert call(command, "x") == 0
    assert seen["colour"] is Colour.RED and seen["to"] is None and seen["times"] == 1 and seen["loud"] is False


@pytest.mark.parametrize(
    "args", [[], ["x", "--colour", "blue"], ["x", "--times", "0"], ["x", "--times", "two"], ["x", "--n"]]
)
def test_wrong_values_are_refused(command: Any, args: list[str]) -> None:
    assert call(command, *args) == 2
    assert seen == {}


def test_help_still_works() -> None:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(paint)
    assert "--colour" in CliRunner().invoke(app, ["--help"]).output
