"""`onboard kernels`: which NKI kernel each operation of a model takes, and why not."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from onboard.cli.exits import Exit
from onboard.cli.view import OutputOption


class KernelView(StrEnum):
    """How the report is shown."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class Dtype(StrEnum):
    """Of weights, activations and cache."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def kernels(
    model: Annotated[str, typer.Argument(help="A model id, a folder or a config.json; no weights are read.")],
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel ranks.")] = 1,
    package: Annotated[
        str | None,
        typer.Option(help="A package's folder or module; else the one that is registered for the architecture."),
    ] = None,
    lnc: Annotated[
        int | None, typer.Option(min=1, max=2, help="NeuronCores of a logical core; else NEURON_LOGICAL_NC_CONFIG.")
    ] = None,
    max_model_len: Annotated[int, typer.Option(min=1, help="As for vllm serve.")] = 4096,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="As for vllm serve.")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As for vllm serve.")] = 8,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a cache block.")] = 32,
    dtype: Annotated[Dtype, typer.Option(help="Of weights, activations and cache.")] = Dtype.BFLOAT16,
    cost: Annotated[
        bool, typer.Option("--cost", help="Run each kernel on the stand-in and set its counts beside the roofline.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --cost: write a Chrome trace of those runs to FILE.")
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when an operation takes no kernel.")
    ] = False,
    format: Annotated[
        KernelView, typer.Option("--format", help="text for people, json for programs.")
    ] = KernelView.TEXT,
    output: OutputOption = None,
) -> None:
    """Show which kernel each operation takes, in every shape that a server would run, and why not.

    The model is built from its config alone and run on tensors without memory, so this needs no weights, no device and
    a few seconds.
    """
    if trace is not None and not cost:
        raise typer.BadParameter("it needs --cost, which runs the kernels", param_hint="--trace")
    from onboard.checks.stack import need
    from onboard.cli.view import View, emit
    from vllm_neuron import envs

    if lnc is not None:
        envs.set_foreign("NEURON_LOGICAL_NC_CONFIG", str(lnc), only_if_unset=False)
    need("to build the model and ask its kernels", "numpy", "torch", "transformers", "ml_dtypes")
    from onboard.checks.kernels import dry_run
    from onboard.checks.kernels_model import DryModel, Limits

    limits = Limits(tp, max_model_len, max_num_batched_tokens, max_num_seqs, block_size, dtype.value)
    report = dry_run(DryModel(model, package, limits))
    if cost:
        from onboard.checks.kernels_cost import measure

        measure(report, trace)
    emit(View(format.value), output, "onboard.report.kernels", report)
    if exit_code and report.refusals:
        raise typer.Exit(Exit.FINDINGS)
