"""The generated pages of docs/reference, from the code that they describe.

`python -m onboard.report.reference` (or `make docs`) writes them; a test checks that they are up to date.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

FOLDER = Path("docs") / "reference"
GENERATED = "<!-- Generated from the code by `make docs`. Do not edit. -->\n"
WIDTH = 100


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    return {
        "cli.md": cli_page(),
        "environment.md": environment_page(),
        "configuration.md": configuration_page(),
        "operations.md": operations_page(),
    }


def cli_page() -> str:
    """Every command with its help, and the exit codes."""
    from onboard.cli.exits import MEANINGS
    from onboard.cli.lazy import load
    from onboard.cli.main import COMMANDS

    parts = [GENERATED, "# Commands\n"]
    for name, entry in sorted(COMMANDS.items()):
        parts += _command(load(name, entry), f"onboard {name}")
    parts.append("## Exit codes\n")
    parts.append(table(("code", "meaning"), [(str(code.value), text) for code, text in MEANINGS.items()]))
    return "\n".join(parts)


def _command(command: Any, path: str) -> list[str]:
    parts = [f"## {path}\n", f"```text\n{_help(command, path)}\n```\n"]
    if isinstance(command, TyperGroup):
        for name, child in sorted(command.commands.items()):
            parts += _command(child, f"{path} {name}")
    return parts


def _help(command: Any, path: str) -> str:
    out = io.StringIO()
    size = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    with contextlib.redirect_stdout(out):
        command.main(["--help"], prog_name=path, standalone_mode=False, **size)
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def environment_page() -> str:
    """Every variable of the plugin."""
    from vllm_neuron.envs import VARIABLES

    rows = [(f"`{v.name}`", v.kind, _value(v.default), v.doc) for v in sorted(VARIABLES.values(), key=lambda v: v.name)]
    note = "A value that does not parse, and an unknown name with the prefix `VLLM_NEURON_`, is an error.\n"
    return "\n".join(
        (GENERATED, "# Environment variables\n", note, table(("variable", "type", "default", "meaning"), rows))
    )


def configuration_page() -> str:
    """Every field of `neuron_config`, and the options that are refused for now."""
    from vllm_neuron.model.neuron_config import NESTED, NOT_YET, NeuronConfig

    note = (
        "Given to vLLM as `--additional-config '{\"neuron_config\": {...}}'`. An unknown key is an error that names "
        "the nearest known one.\n"
    )
    refused = "Known from other Neuron plugins and refused, since this one does not honour them yet: "
    return "\n".join(
        (
            GENERATED,
            "# neuron_config\n",
            note,
            _fields(NeuronConfig),
            *(f"## {name}\n\n{_fields(kind)}" for name, kind in NESTED.items()),
            "## Refused\n",
            refused + ", ".join(f"`{name}`" for name in NOT_YET) + ".\n",
        )
    )


def operations_page() -> str:
    """Every operation with its kernels, and the calls of the public kernel library."""
    import vllm_neuron.functional as NF
    from vllm_neuron.functional import on_nki
    from vllm_neuron.nki.library import CALLS, FLOOR, NOT_CALLED

    def kernels(operation: Any, target: str) -> str:
        return ", ".join(f"`{kernel.name}`" for kernel in operation.kernels if kernel.target == target)

    rows = [
        (
            f"`{name}`",
            (operation.__doc__ or "").splitlines()[0].replace("](", "] ("),
            kernels(operation, "nki")
            or (f"left to the compiler: {operation.compiler}" if operation.compiler else "none"),
            kernels(operation, "cpu") or "the reference",
        )
        for name, operation in sorted(NF.OPERATIONS.items())
    ]
    calls = [(f"`{call.operation}`", f"`{call.module}.{call.function}`", call.layout, call.limits) for call in CALLS]
    note = "Kernels are tried from left to right; `NF.<operation>.explain(...)` says what each answers to a call.\n"
    floor = ".".join(map(str, FLOOR))
    library = (
        f"Tried before our own kernels where `nkilib` {floor} or later is installed. From its public documentation and "
        "sources; hardware has not seen these calls from here.\n"
    )
    return "\n".join(
        (
            GENERATED,
            "# Operations and their kernels\n",
            f"Registered by `{on_nki.__name__}`. {note}",
            table(("operation", "what", "on NKI", "in CPU mode"), rows),
            "## The public kernel library\n",
            library,
            table(("operation", "call", "layout", "limits"), calls),
            table(("operation", "why the library is not called"), [(f"`{k}`", v) for k, v in NOT_CALLED.items()]),
        )
    )


def _fields(config: Any) -> str:
    """The fields of a configuration class as a table."""
    rows = []
    for f in dataclasses.fields(config):
        default = "needed" if f.default is dataclasses.MISSING else _value(f.default)
        rows.append((f"`{f.name}`", f"`{f.type}`", default, str(f.metadata["doc"])))
    return table(("field", "type", "default", "meaning"), rows)


def _value(value: Any) -> str:
    return "unset" if value is None or value == "" else f"`{value}`"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def write(root: Path) -> list[Path]:
    """Write the pages below `root` and return their paths."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text)
        written.append(folder / name)
    return written


if __name__ == "__main__":
    for page in write(Path.cwd()):
        typer.echo(str(page))
