"""A model validated on vLLM's engine in this process, or on a running server."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onboard.checks.subject import Subject, checkpoint_folder, find_subject, running
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError

if TYPE_CHECKING:
    from vllm_neuron.accuracy.accuracy_debugger.api import Options
    from vllm_neuron.accuracy.prompts import Prompt
    from vllm_neuron.accuracy.results import Report
    from vllm_neuron.accuracy.sources import LogitsSource

# Tokens of the longest prompt when nobody says otherwise: what the default prompts and texts need, and some.
MAX_LENGTH = 2048
# Tokens that the default prompts may have at most; longer ones of a file are taken as they are.
DEFAULT_PROMPT = 1024
UNCHUNKED = "no prompt was prefilled in chunks: that path of the engine is not covered; --chunk 128 covers it"
Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        model: checkpoint folder. package: a package's folder or module; None for the registered one.
        levels: of 1, 2, 3. reference: what level 1 is held against.
        prompts: file for level 2. dtype: that the engine computes in.
        chunk: tokens of a prefill step of the engine; None for vLLM's default. tp: ranks of the engine; None for one.
        server: URL of a running server; None for an engine in this process. timeout: seconds for one answer of it.
        tasks: of lm_eval. text: file for perplexity; None for the default one. thresholds: file of limits.
        limit: items a task. download: fetch data sets.
        max_length: tokens of the longest prompt.
    """

    model: str
    package: str | None = None
    levels: Sequence[int] = (3, 2, 1)
    reference: Literal["fp32", "bf16"] = "fp32"
    prompts: Path | None = None
    dtype: str = "bfloat16"
    chunk: int | None = None
    tp: int | None = None
    server: str | None = None
    timeout: float = 120.0
    tasks: Sequence[str] | None = None
    text: Path | None = None
    thresholds: Path | None = None
    limit: int | None = None
    download: bool = False
    max_length: int = MAX_LENGTH


def validate(request: Request, say: Say, keep: Callable[[Report], None] = lambda report: None) -> Report:
    """Run what is asked for; refuse early what can't be run.

    Args:
        request: what is asked for.
        say: told what runs.
        keep: given the report of what is finished when Ctrl-C or SIGTERM ends the run.

    Raises:
        CheckpointError, ConfigError, UnsupportedError: an input that can't be used, or no server at the URL.
        RunError: the plugin is not active in this process, or the package's own code stops before the first level.
    """
    checkpoint_folder(request.model)
    # Read once, when torch is loaded. References and engine take turns on the same cores, often beside other programs.
    envs.set_foreign("OMP_WAIT_POLICY", "passive")
    say("importing torch and transformers", 0, 1)
    with whole():
        import torch  # noqa: F401
        import transformers  # noqa: F401

        from vllm_neuron.accuracy.accuracy_debugger import api
    say("reading the checkpoint", 0, 1)
    subject = find_subject(request.model, request.package, needed=request.server is None)
    tokenizer = subject.tokenizer()
    options = _options(request, subject, tokenizer)
    from onboard.probe.reference import quiet

    opened, max_length = _source(request, subject, tokenizer, options)
    noted = partial(_noted, request, options)
    with quiet(), running(subject):
        report = api.run(
            subject.folder,
            opened,
            tokenizer=tokenizer,
            max_length=max_length,
            target=subject.target() if subject.factory is not None else None,
            package=subject.package,
            options=options,
            say=say,
            keep=lambda cut: keep(noted(cut)),
        )
    return noted(report)


def _noted(request: Request, options: Options, report: Report) -> Report:
    """The report with what the engine's options cover and what they leave out."""
    two = report.level(2)
    if request.server is not None or two is None or not any(prompt.rows for prompt in two.prompts):
        return report
    ranks = request.tp or 1
    if ranks > 1:
        told = replace(two, coverage=(*two.coverage, f"TP {ranks}"))
    else:
        told = replace(two, not_covered=(*two.not_covered, "TP (--tp 2 covers it)"))
    levels = tuple(told if level.level == 2 else level for level in report.levels)
    notes = report.notes if _chunked(request, options.prompts or ()) else (*report.notes, UNCHUNKED)
    return replace(report, levels=levels, notes=notes)


def _chunked(request: Request, prompts: Sequence[Prompt]) -> bool:
    """Some prompt's prefill takes more than one step."""
    from vllm_neuron.vllm.starting import PIPED_TOKENS

    chunk = request.chunk or (PIPED_TOKENS if (request.tp or 1) > 1 else None)
    return chunk is not None and any(len(prompt.ids) - prompt.steps > chunk for prompt in prompts)


def _options(request: Request, subject: Subject, tokenizer: Any) -> Options:
    from vllm_neuron.accuracy.accuracy_debugger.api import Options
    from vllm_neuron.accuracy.accuracy_debugger.tasks_level import TasksPlan
    from vllm_neuron.accuracy.tasks import DEFAULT_TEXT, OWN_TASK
    from vllm_neuron.accuracy.tasks.thresholds import Thresholds, load_thresholds

    thresholds = load_thresholds(request.thresholds) if request.thresholds else Thresholds()
    plan = TasksPlan(
        names=tuple(request.tasks) if request.tasks is not None else (OWN_TASK,),
        text=request.text or DEFAULT_TEXT,
        thresholds=thresholds,
        limit=request.limit,
        download=request.download,
    )
    prompts = _prompts(request, subject, tokenizer) if 2 in request.levels else None
    return Options(request.levels, request.reference, request.dtype, prompts, plan)


def _prompts(request: Request, subject: Subject, tokenizer: Any) -> list[Prompt]:
    from vllm_neuron.accuracy.prompts import check_ids, default_prompts, read_prompts
    from vllm_neuron.accuracy.reach import Reach

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    if request.prompts is None:
        most = min(DEFAULT_PROMPT, _room(request, subject))
        prompts = default_prompts(encode, Reach.of_config(subject.config), most_tokens=most)
    else:
        prompts = read_prompts(request.prompts, encode)
    check_ids(prompts, subject.vocab_size)
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    room = _room(request, subject)
    if len(longest.ids) > room:
        raise ConfigError(
            f"--prompts {longest.name}", f"{len(longest.ids)} tokens", f"at most {room}", "Raise --max-length."
        )
    return prompts


def _source(
    request: Request, subject: Subject, tokenizer: Any, options: Options
) -> tuple[Callable[[], AbstractContextManager[LogitsSource]], int]:
    """How the target is opened, and the tokens that it takes."""
    room = _room(request, subject)
    if request.server is not None:
        found = _server(request, subject, tokenizer)
        longest = max((len(p.ids) for p in options.prompts or ()), default=0)
        if longest >= found.max_model_len:
            raise ConfigError(
                "--server max_model_len",
                found.max_model_len,
                f"more than the longest prompt's {longest} tokens",
                "Start it with a longer --max-model-len, or name shorter prompts with --prompts or --max-length.",
            )
        return (lambda: nullcontext(found)), min(room, found.max_model_len - 1)
    needs_engine = bool({1, 2} & set(request.levels))
    if needs_engine:
        _activate()
    return (lambda: _engine(request, subject, room)), room


def _room(request: Request, subject: Subject) -> int:
    """Tokens of the longest prompt; engines and servers make one more than they are given."""
    return request.max_length if subject.max_length is None else min(request.max_length, subject.max_length - 1)


def _server(request: Request, subject: Subject, tokenizer: Any) -> Any:
    from vllm_neuron.accuracy.http_json import NoAnswerError
    from vllm_neuron.accuracy.inputs import tokenizer_id
    from vllm_neuron.accuracy.server import connect

    assert request.server is not None
    try:
        return connect(
            request.server,
            tokenizer=tokenizer,
            tokenizer_id=tokenizer_id(subject.folder),
            vocab_size=subject.vocab_size,
            timeout=request.timeout,
            key=envs.foreign("OPENAI_API_KEY") or "",
        )
    except NoAnswerError as error:
        action = "Start the server, wait until its model is loaded, or correct the URL."
        raise ConfigError("--server", f"{request.server} ({error.value})", "a server that answers", action) from None


def _engine(request: Request, subject: Subject, room: int) -> AbstractContextManager[LogitsSource]:
    from vllm_neuron.accuracy.inputs import tokenizer_id
    from vllm_neuron.vllm.offline import EngineOptions, EngineSource

    options = EngineOptions(
        dtype=request.dtype,
        max_model_len=room + 1,
        max_num_seqs=8,
        max_num_batched_tokens=request.chunk,
        tensor_parallel_size=request.tp or 1,
    )
    return EngineSource(subject.folder, options, package=subject.uninstalled, tokenizer_id=tokenizer_id(subject.folder))


def _activate() -> None:
    """Our plugin in this process: CPU mode where there is no Neuron device, and nothing that keeps it out."""
    from onboard.demo.run import choose_mode, require_plugin

    # The engine's log lines would stand in the report on stdout.
    envs.set_foreign("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    envs.set_foreign("VLLM_LOGGING_LEVEL", "ERROR")
    envs.set_foreign("VLLM_NEURON_LOG_LEVEL", "WARNING")
    # It warns while it is imported, before vLLM sets its loggers up.
    logging.getLogger("vllm.triton_utils.importing").setLevel(logging.ERROR)
    choose_mode()
    require_plugin()
    with whole():
        import vllm_neuron.vllm.offline  # noqa: F401


@contextmanager
def whole() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the block.

    An import of torch that is interrupted aborts the process, and a report has three files.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        signal.raise_signal(asked[0])
