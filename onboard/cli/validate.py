"""`onboard validate`: is it a bug, or is it BF16? Three levels of proof on real weights, one verdict."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onboard.cli.exits import Exit
from onboard.cli.view import OutputOption, View, ViewOption, emit
from onboard.report.console import Progress

if TYPE_CHECKING:
    from onboard.checks.validate import Request
    from vllm_neuron.accuracy.results import Report

# Outcome -> exit code.
EXITS = {"pass": Exit.OK, "not run": Exit.OPEN, "fail": Exit.FAILED, "refused": Exit.BAD_INPUT}
VIEWS = "onboard.report.accuracy"


class Level(StrEnum):
    """What `--level` takes."""

    TASKS = "1"
    TOKENS = "2"
    MODULES = "3"
    ALL = "all"


class Reference(StrEnum):
    """What `--reference` takes."""

    FP32 = "fp32"
    BF16 = "bf16"


class Dtype(StrEnum):
    """What `--dtype` takes."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Checkpoint folder, with weights and tokenizer.")]
PackageOption = Annotated[
    str | None, typer.Option(metavar="P", help="A package's folder or module; default: the registered one.")
]
LevelOption = Annotated[
    list[Level] | None, typer.Option(help="1 tasks, 2 tokens, 3 modules; may be repeated. Default: all.")
]
ReferenceOption = Annotated[
    Reference, typer.Option(help="What level 1 is held against; bf16 needs half the memory there.")
]
PromptsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Level 2: .txt, a prompt a line, or .jsonl. Default: our own.")
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write report.html, report.json and report.md there.")
]
ServerOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Validate a running vLLM server, levels 2 and 1.")
]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Seconds that one answer of the server may take.")]
TasksOption = Annotated[
    str | None, typer.Option(metavar="A,B", help="Level 1: tasks of lm_eval, or YAML files. Default: plain_facts.")
]
TextOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Level 1: text for perplexity. Default: one of our own.")
]
ThresholdsOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Level 1: limits, .toml or .json.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Level 1: only the first so many items a task.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Fetch data sets that are not here.")]
ChunkOption = Annotated[
    int | None, typer.Option(min=16, help="Tokens of a prefill step of the engine: longer prompts run in chunks.")
]
TpOption = Annotated[int | None, typer.Option("--tp", min=1, metavar="N", help="Ranks of the engine. Default: 1.")]
DtypeOption = Annotated[Dtype, typer.Option(help="That the engine computes in.")]
MaxLengthOption = Annotated[int, typer.Option(min=2, help="Tokens of the longest prompt.")]


def validate(
    model: ModelArgument,
    package: PackageOption = None,
    level: LevelOption = None,
    reference: ReferenceOption = Reference.FP32,
    prompts: PromptsOption = None,
    report: ReportOption = None,
    server: ServerOption = None,
    timeout: TimeoutOption = 120.0,
    tasks: TasksOption = None,
    text: TextOption = None,
    thresholds: ThresholdsOption = None,
    limit: LimitOption = None,
    download: DownloadOption = False,
    dtype: DtypeOption = Dtype.BFLOAT16,
    chunk: ChunkOption = None,
    tp: TpOption = None,
    max_length: MaxLengthOption = 2048,
    format: ViewOption = View.TEXT,
    output: OutputOption = None,
) -> None:
    """Validate a model on real weights: modules, tokens, tasks; and name the place of what is wrong.

    The target is vLLM's engine in this process (CPU mode where there is no Neuron device), or a server. The
    references are Hugging Face in fp32 and bf16. Exit code 0 when all pass, 3 when an input can't be used (no server at
    the URL) or both sides can't be compared, 4 when a part could not be run, 5 when a comparison fails or code of the
    package or the engine stops; the other levels run nevertheless. After Ctrl-C the report holds what was finished.
    """
    from onboard.checks.validate import Request, validate

    request = Request(
        model=model,
        package=package,
        levels=_levels(level, server),
        reference=reference.value,
        prompts=prompts,
        dtype=dtype.value,
        chunk=chunk,
        tp=tp,
        server=server,
        timeout=timeout,
        tasks=[name for name in tasks.split(",") if name] if tasks is not None else None,
        text=text,
        thresholds=thresholds,
        limit=limit,
        download=download,
        max_length=max_length,
    )
    _check(request)
    folder = _prepared(report, output)
    with Progress().track() as say:
        found = validate(request, say, keep=lambda cut: _write(cut, folder, quiet=True))
    _write(found, folder, quiet=format is not View.TEXT)
    emit(format, output, VIEWS, found)
    code = EXITS[found.outcome]
    if code is not Exit.OK:
        raise typer.Exit(code)


def _levels(chosen: list[Level] | None, server: str | None) -> tuple[int, ...]:
    """Numbers in the order that they run; a server shows no modules."""
    every = (2, 1) if server else (3, 2, 1)
    if not chosen or Level.ALL in chosen:
        return every
    if server and Level.MODULES in chosen:
        raise typer.BadParameter("a server does not show its modules", param_hint="--level 3 --server")
    return tuple(number for number in every if Level(str(number)) in chosen)


def _check(request: Request) -> None:
    """Options that would have no effect are errors."""
    for name, given, level in (
        ("--prompts", request.prompts, 2),
        ("--tasks", request.tasks, 1),
        ("--text", request.text, 1),
        ("--thresholds", request.thresholds, 1),
        ("--limit", request.limit, 1),
    ):
        if given is not None and level not in request.levels:
            raise typer.BadParameter(f"it needs level {level}", param_hint=name)
    for name, number in (("--chunk", request.chunk), ("--tp", request.tp)):
        if number is not None and (request.server is not None or not {1, 2} & set(request.levels)):
            raise typer.BadParameter("it needs an engine in this process: level 1 or 2", param_hint=name)
    if request.tasks == []:
        raise typer.BadParameter("it names no task", param_hint="--tasks")
    if request.reference == "bf16" and 1 not in request.levels:
        raise typer.BadParameter("it needs level 1", param_hint="--reference bf16")
    if request.server is not None and request.dtype == "float32":
        raise typer.BadParameter("a server computes in the dtype that it was started with", param_hint="--dtype")


def _prepared(report: Path | None, output: Path | None) -> Path | None:
    """The report's folder; what can't be written to is refused before the work."""
    from onboard.report.accuracy_files import prepare
    from onboard.report.write import check

    if output is not None:
        check(output)
    return None if report is None else prepare(report)


def _write(found: Report, folder: Path | None, *, quiet: bool) -> None:
    from onboard.checks.validate import whole
    from onboard.report.accuracy_files import write

    if folder is None:
        return
    with whole():
        paths = write(found, folder)
    for path in paths:
        typer.echo(f"report: {path}", err=quiet)
