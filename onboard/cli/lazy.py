"""A typer group that imports a command's module only when that command runs.

`onboard --help` lists every command from a table of names and one-line texts, so it costs the same however heavy the
commands are.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from onboard.cli.coercion import without_adapters


class LazyCommand(NamedTuple):
    """Where a command lives and what the list of commands says about it.

    The module holds a function named like the command (dashes become underscores), or a `typer.Typer` named `app`
    when the command has sub-commands.
    """

    module: str
    help: str


def load(name: str, command: LazyCommand) -> Any:
    """Import a command's module and build its typer command object."""
    module = importlib.import_module(command.module)
    app = getattr(module, "app", None)
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(name)(getattr(module, name.replace("-", "_")))
    built = typer.main.get_command(app)
    built.name = name
    without_adapters(built)
    return built


class LazyGroup(TyperGroup):
    """Shows stubs in help and loads the real command when it is resolved. Subclasses set `table`."""

    table: dict[str, LazyCommand]

    def __init__(self, **attributes: Any) -> None:
        attributes["commands"] = {
            name: TyperCommand(name, help=command.help, rich_markup_mode=None) for name, command in self.table.items()
        }
        super().__init__(**attributes)
        self._loaded: set[str] = set()

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Replace the stub of the named command by the real one, then resolve as usual."""
        name = args[0]
        if name in self.table and name not in self._loaded:
            self.add_command(load(name, self.table[name]), name)
            self._loaded.add(name)
        return super().resolve_command(ctx, args)
