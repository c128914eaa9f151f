"""Entry point of the `onboard` command: the table of commands, and the one place that turns errors into exit codes."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from onboard import __version__
from onboard.cli.coercion import without_adapters
from onboard.cli.exits import MEANINGS, Exit
from onboard.cli.lazy import LazyCommand, LazyGroup
from onboard.cli.stdout import OutputError, PipeClosedError, guarded, silence
from onboard.errors import RunError
from vllm_neuron.errors import NeuronError

COMMANDS: dict[str, LazyCommand] = {
    "bisect": LazyCommand("onboard.cli.bisect", "Name the first module of a package that is wrong by itself."),
    "capture": LazyCommand("onboard.cli.capture", "Write what modules of a served model are given and give."),
    "catalog": LazyCommand("onboard.cli.catalog", "List well-known models whose architecture is bundled."),
    "demo": LazyCommand("onboard.cli.demo", "The whole way on real weights: compare, generate, prove, serve, ask."),
    "demo-model": LazyCommand("onboard.cli.demo_model", "Write a real checkpoint folder from an installed package."),
    "diff": LazyCommand("onboard.cli.diff", "Say how two models differ, and what a port has to do."),
    "doctor": LazyCommand("onboard.cli.doctor", "Explain why the plugin is or is not active, and what to set."),
    "inspect": LazyCommand("onboard.cli.inspect", "Show one model: layers, exact parameters, cache cost."),
    "kernels": LazyCommand("onboard.cli.kernels", "Show which NKI kernel each operation of a model takes, or why not."),
    "lint-kernel": LazyCommand("onboard.cli.lint_kernel", "Find in an NKI kernel what its compiler would refuse."),
    "new": LazyCommand("onboard.cli.new", "Write a model package from a config, and prove it."),
    "replay": LazyCommand("onboard.cli.replay", "Run one recorded step again and compare it bit by bit."),
    "update": LazyCommand("onboard.cli.update", "Render a package again and merge that into your edits."),
    "validate": LazyCommand("onboard.cli.validate", "Is it a bug or BF16? Modules, tokens, tasks, and the place."),
    "verify": LazyCommand("onboard.cli.verify", "Prove that a package computes what transformers computes."),
    "zoo": LazyCommand("onboard.cli.zoo", "Write and prove a package for every decoder of transformers."),
}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {text}" for code, text in MEANINGS.items())


class OnboardGroup(LazyGroup):
    """The top-level group."""

    table = COMMANDS


app = typer.Typer(
    cls=OnboardGroup,
    name="onboard",
    help="Bring Hugging Face models to AWS Trainium: compare, port, prove, and serve with vLLM.",
    epilog=EPILOG,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"onboard {__version__}")
        raise typer.Exit(Exit.OK)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def wants_json(args: Sequence[str]) -> bool:
    """Whether the command line asks for JSON; known before it is parsed, so that usage errors are JSON too."""
    return "--format=json" in args or ("--format", "json") in itertools.pairwise(args)


class ErrorReport:
    """Context in which an exception becomes a message and an exit code.

    After the block, `code` is the exit code. Exceptions that are not errors (`SystemExit`) pass through.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.code: int = Exit.OK

    def __enter__(self) -> ErrorReport:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        match error:
            case None:
                return False
            case PipeClosedError():
                silence()
                self.code = Exit.PIPE_CLOSED
            case OutputError():
                self._lost(error)
            case RunError():
                self._say(Exit.FAILED, f"error: {error}", error.as_dict())
            case NeuronError():
                self._say(Exit.BAD_INPUT, f"error: {error}", error.as_dict())
            case OSError() if error.filename is not None:
                text = f"{error.filename}: {error.strerror}. Check the path and its permissions."
                self._say(Exit.BAD_INPUT, f"error: {text}", {"error": type(error).__name__, "message": text})
            case TyperException():
                self._usage(error)
            case KeyboardInterrupt() | typer.Abort():
                # Abort: Ctrl-C, or the end of the input, at a question.
                self._say(Exit.INTERRUPTED, "interrupted", {"error": "KeyboardInterrupt"})
            case Exception():
                traceback.print_exception(error)
                text = "error: this is a bug of onboard. Please report it with the lines above."
                self._say(Exit.BUG, text, {"error": type(error).__name__, "message": str(error)})
            case _:
                return False
        return True

    def _usage(self, error: TyperException) -> None:
        context = getattr(error, "ctx", None)
        usage = f"{context.get_usage()}\nTry '{context.command_path} --help'.\n" if context else ""
        message = error.format_message()
        self._say(Exit.USAGE, f"{usage}error: {message}", {"error": "UsageError", "message": message})

    def _say(self, code: Exit, text: str, fields: dict[str, Any]) -> None:
        self.code = code
        if not self.as_json:
            typer.echo(text, err=True)
            return
        try:
            typer.echo(json.dumps({**fields, "exit_code": code.value}))
            sys.stdout.flush()
        except PipeClosedError:
            silence()
            self.code = Exit.PIPE_CLOSED
        except OutputError as error:
            typer.echo(text, err=True)
            self._lost(error)

    def _lost(self, error: OutputError) -> None:
        """Say on stderr, whatever the format, that stdout takes nothing."""
        silence()
        self.code = Exit.FAILED
        typer.echo(f"error: {error}", err=True)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; messages go to stderr, or to stdout with `--format json`."""
    args = list(args)
    report = ErrorReport(wants_json(args))
    with guarded(), report:
        if not args:
            args = ["--help"]
        command = typer.main.get_command(app)
        without_adapters(command, below=False)
        try:
            result = command(args, prog_name="onboard", standalone_mode=False)
        finally:
            sys.stdout.flush()
        report.code = result if isinstance(result, int) else Exit.OK
        if report.code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
    return int(report.code)


def main() -> None:
    """Console script `onboard`. A termination request unwinds like any exit, so that children and files are tidied."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.TERMINATED))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
