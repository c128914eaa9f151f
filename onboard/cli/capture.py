"""`onboard capture`: what modules of a served model are given and give, in files; or the index of such files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onboard.report.console import Format, FormatOption, print_json


def capture(
    model: Annotated[
        str, typer.Argument(help="A checkpoint folder; or the folder of an earlier capture, to show its index.")
    ],
    modules: Annotated[
        list[str] | None,
        typer.Option("--modules", metavar="PATTERN", help="layers.{0-3}.attn, layers.*, head; may be repeated."),
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="A new or empty folder.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="May be repeated.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One prompt a line; in a .jsonl file strings or lists of token ids."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate after each prompt.")] = 4,
    steps: Annotated[str | None, typer.Option(metavar="0-3,7", help="Steps to write; all by default.")] = None,
    ranks: Annotated[str | None, typer.Option(metavar="0,1", help="Ranks that write; all by default.")] = None,
    tensors: Annotated[str, typer.Option(help="both, inputs or outputs.")] = "both",
    max_bytes: Annotated[int, typer.Option(min=1, help="A rank stops before it writes more.")] = 1 << 30,
    package: Annotated[
        str | None, typer.Option(metavar="PACKAGE", help="A package's folder or module; else the registered one.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "--tp", min=1, help="Ranks.")] = 1,
    chunk: Annotated[int | None, typer.Option(min=1, help="max_num_batched_tokens: tokens of a prefill step.")] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Serve prompts with vLLM in this process, write chosen modules' inputs and outputs, and show the index.

    One safetensors file a step and rank; rows of padding are cut off, and each row is known by request and position.
    A running server does the same with neuron_config.tensor_capture.
    """
    if modules is None and to is None and prompt is None and prompts is None:
        show(model, format)
        return
    missing = [name for name, value in (("--modules", modules), ("--to", to)) if not value]
    if missing or (prompt is None) == (prompts is None):
        needed = missing[0] if missing else "either --prompt or --prompts"
        raise typer.BadParameter(f"{needed} is needed to capture", param_hint="onboard capture")
    from onboard.checks.capture import expanded, numbers

    config: dict[str, Any] = {
        "modules": list(modules or ()),
        "dir": str(to),
        "tensors": tensors,
        "max_bytes": max_bytes,
    }
    if steps is not None:
        config["steps"] = numbers(steps)
    if ranks is not None:
        config["ranks"] = expanded(numbers(ranks))
    _run(model, package, config, prompt, prompts, format, _engine(tokens, dtype, tensor_parallel_size, chunk))


def _engine(tokens: int, dtype: str, tensor_parallel_size: int, chunk: int | None) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "dtype": dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "max_num_batched_tokens": chunk,
    }


def _run(
    model: str,
    package: str | None,
    config: dict[str, Any],
    prompt: list[str] | None,
    prompts: Path | None,
    format: Format,
    engine: dict[str, Any],
) -> None:
    from onboard.checks import capture as checks
    from onboard.checks.subject import find_subject
    from onboard.demo.run import choose_mode, require_plugin

    mode = choose_mode()
    checks.quiet_engine()
    if format is Format.TEXT:
        typer.echo(mode.words)
    texts = tuple(checks.read_prompts(prompts) if prompts is not None else prompt or ())
    subject = find_subject(model, package)
    require_plugin()
    folder = checks.capture(subject, checks.CaptureRequest(config, texts, **engine))
    _print(folder, format)


def show(path: str, format: Format) -> None:
    """Print the index of a capture folder."""
    from vllm_neuron.snapshot.index import CaptureFolder

    _print(CaptureFolder.open(path, "MODEL"), format)


def _print(folder: Any, format: Format) -> None:
    from onboard.report.capture_text import capture_json, capture_lines

    if format is Format.JSON:
        print_json(capture_json(folder))
        return
    for line in capture_lines(folder):
        typer.echo(line)
