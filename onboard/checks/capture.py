"""Running prompts through an engine that captures modules, and what a capture folder holds."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onboard.checks.subject import Subject
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError

if TYPE_CHECKING:
    from vllm_neuron.snapshot.index import CaptureFolder


@dataclass(frozen=True)
class CaptureRequest:
    """What to run and what to write.

    Attributes:
        capture: the object ``neuron_config.tensor_capture``.
        prompts: texts, or lists of token ids.
        tokens: to generate after each, greedily.
        dtype, tensor_parallel_size, max_num_batched_tokens, max_model_len: of the engine.
    """

    capture: dict[str, Any]
    prompts: tuple[str | list[int], ...]
    tokens: int
    dtype: str
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None


def read_prompts(path: Path) -> list[str | list[int]]:
    """Prompts of a file: one a line; in a ``.jsonl`` file each line is a string, a list of ids, or an object.

    Raises:
        ConfigError: no prompts, or a line of another kind.
        OSError: the file can't be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), str(error), "a text file in UTF-8") from error
    found = [_prompt(path, i, line) for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(str(path), "no lines", "at least one prompt")
    return found


def _prompt(path: Path, number: int, line: str) -> str | list[int]:
    if path.suffix != ".jsonl":
        return line
    expected = 'a string, a list of token ids, or {"prompt": ...} or {"prompt_token_ids": [...]}'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}", line, expected) from error
    if isinstance(value, dict):
        value = value.get("prompt", value.get("prompt_token_ids"))
    ids = isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value)
    if not ids and not (isinstance(value, str) and value):
        raise ConfigError(f"{path}, line {number}", line, expected)
    return value


def numbers(text: str) -> list[str]:
    """``0-3,7`` as the list that ``neuron_config`` takes.

    Raises:
        ConfigError: other text.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+(-\d+)?", part) for part in parts):
        raise ConfigError("numbers", text, "numbers and ranges such as 0-3,7")
    return parts


def expanded(parts: Sequence[str]) -> list[int]:
    """``["0-2", "7"]`` as ``[0, 1, 2, 7]``."""
    ends = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in parts)]
    return [number for first, last in ends for number in range(first, last + 1)]


def quiet_engine() -> None:
    """vLLM's log on stderr, warnings only, unless the user has said otherwise."""
    envs.set_foreign("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    envs.set_foreign("VLLM_LOGGING_LEVEL", "ERROR")


def capture(subject: Subject, request: CaptureRequest) -> CaptureFolder:
    """Run the prompts through vLLM and return what was captured.

    Raises:
        NeuronError: the engine can't be started so; a module pattern, the folder or a prompt does not fit.
    """
    from vllm_neuron.snapshot.index import CaptureFolder
    from vllm_neuron.vllm.offline import EngineOptions, EngineSource

    ids = _ids(subject, request.prompts)
    longest = max(map(len, ids)) + request.tokens + 1
    options = EngineOptions(
        dtype=request.dtype,
        max_model_len=request.max_model_len or _length(subject, longest),
        max_num_batched_tokens=request.max_num_batched_tokens,
        tensor_parallel_size=request.tensor_parallel_size,
        neuron_config={"tensor_capture": request.capture},
    )
    with EngineSource(subject.folder, options, kv=False, package=subject.uninstalled) as engine:
        engine.generate(ids, request.tokens)
    return CaptureFolder.open(request.capture["dir"])


def _length(subject: Subject, longest: int) -> int:
    limit = subject.max_length
    if limit is not None and longest > limit:
        raise ConfigError("prompts", longest, f"at most {limit} tokens, generated ones included", "Shorten them.")
    return longest


def _ids(subject: Subject, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    if all(isinstance(prompt, list) for prompt in prompts):
        return [list(prompt) for prompt in prompts if not isinstance(prompt, str)]
    tokenizer = subject.tokenizer()
    found = [list(tokenizer(p)["input_ids"]) if isinstance(p, str) else p for p in prompts]
    empty = [p for p, ids in zip(prompts, found, strict=True) if not ids]
    if empty:
        raise ConfigError("prompts", empty[0], "text that the tokenizer makes tokens of")
    return found
