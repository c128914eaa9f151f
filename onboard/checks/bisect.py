"""The guilty module of a package on a real checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onboard.checks.subject import Subject, find_subject, running
from vllm_neuron.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from vllm_neuron.accuracy.bisect import Bisection
    from vllm_neuron.accuracy.hf import HFReference

# Tokens of the longest prompt when nobody says otherwise: past position 256 and past common windows.
MAX_LENGTH = 640
# Default prompts that are run beside the longest one: one is enough to batch with.
MATE = "sentence"
Say = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Request:
    """What the command line asks for.

    Attributes:
        model: checkpoint folder. package: a package's folder or module; None for the registered one.
        prompts: file; None for the default ones.
        dtypes: ``float32``, ``bfloat16`` or both.
        max_length: tokens of the longest prompt.
    """

    model: str
    package: str | None = None
    prompts: Path | None = None
    dtypes: Sequence[str] = ("float32", "bfloat16")
    max_length: int = MAX_LENGTH


def bisect(request: Request, say: Say) -> Bisection:
    """Look for the guilty module.

    Raises:
        CheckpointError, ConfigError, UnsupportedError: an input that can't be used.
        RunError: the package's own code stops with an exception.
    """
    say("reading the checkpoint", 0, 1)
    subject = find_subject(request.model, request.package)
    prompts = _prompts(request, subject)
    from onboard.probe.reference import quiet
    from vllm_neuron.accuracy.bisect import bisect as search
    from vllm_neuron.accuracy.hf import HFReference

    def reference(dtype: torch.dtype) -> HFReference:
        return HFReference.load(subject.folder, dtype)

    with quiet(), running(subject):
        return search(
            subject.target(),
            reference,
            prompts,
            dtypes=request.dtypes,
            progress=lambda what: say(what, 0, 1),
        )


def _prompts(request: Request, subject: Subject) -> list[tuple[int, ...]]:
    from vllm_neuron.accuracy.prompts import check_ids, default_prompts, read_prompts
    from vllm_neuron.accuracy.reach import Reach

    tokenizer: Any = subject.tokenizer()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text)["input_ids"]
        return ids

    room = min(request.max_length, subject.max_length or request.max_length)
    if request.prompts is None:
        made = default_prompts(encode, Reach.of_config(subject.config), most_tokens=room)
        check_ids(made, subject.vocab_size)
        longest = max(made, key=lambda prompt: len(prompt.ids))
        return [longest.ids, *(prompt.ids for prompt in made if prompt.name == MATE and prompt is not longest)]
    found = read_prompts(request.prompts, encode)
    check_ids(found, subject.vocab_size)
    for prompt in found:
        if len(prompt.ids) > room:
            raise ConfigError(
                f"--prompts {prompt.name}", f"{len(prompt.ids)} tokens", f"at most {room}", "Raise --max-length."
            )
    return [prompt.ids for prompt in found]
