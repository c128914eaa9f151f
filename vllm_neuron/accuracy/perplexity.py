"""Loss on a local text, token by token in strided windows: the target against the reference on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.results import TaskResult
from vllm_neuron.accuracy.sources import LogitsSource, Scored
from vllm_neuron.accuracy.tasks.thresholds import PerplexityThreshold
from vllm_neuron.errors import ConfigError, NonFiniteError

TASK, METRIC = "perplexity", "nats per token"
WINDOW = 512
# One-sided 95 %: how many standard errors the mean may be above the limit by chance.
Z = 1.645
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Text:
    """A text as token ids.

    Attributes:
        name: of the file.
        ids: without special tokens. prefix: what the tokenizer puts in front of a text, and so of each window.
        window, stride: tokens of a window (prefix included), and how far apart two windows begin.
    """

    name: str
    ids: tuple[int, ...]
    prefix: tuple[int, ...]
    window: int
    stride: int

    @property
    def scored(self) -> int:
        """Tokens that get a loss: all but the very first when nothing stands in front of it."""
        return len(self.ids) - (0 if self.prefix else 1)

    def windows(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """``(ids, how many of the last are new)``: each token is predicted once, with as much context as there is."""
        room, done = self.window - len(self.prefix), 0
        while done < len(self.ids):
            end = min(len(self.ids), room if done == 0 else done + self.stride)
            begin = max(0, end - room)
            new = end - done - (1 if done == 0 and not self.prefix else 0)
            yield (*self.prefix, *self.ids[begin:end]), new
            done = end


@dataclass(frozen=True)
class Losses:
    """Negative log-probabilities of a text's tokens, in nats: float64 [T], shorter when the source ended early."""

    nats_T: Tensor
    notes: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        """Nats a token; nan when there is none."""
        return float(self.nats_T.mean()) if len(self.nats_T) else math.nan


def read_text(path: Path, tokenizer: Any, *, max_length: int, window: int = WINDOW) -> Text:
    """A file as windows of tokens.

    Args:
        path: UTF-8 text.
        tokenizer: of the model, from transformers.
        max_length: tokens that both sides take.
        window: tokens of a window; at most ``max_length``.

    Raises:
        ConfigError: the file can't be read, or has less than two tokens.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--text", str(path), f"a UTF-8 file that can be read ({error})") from None
    ids = tuple(tokenizer(content, add_special_tokens=False)["input_ids"])
    if len(ids) < 2:
        raise ConfigError("--text", str(path), "a text of at least two tokens", f"It has {len(ids)}.")
    both = tokenizer(content)["input_ids"]
    prefix = tuple(both[: both.index(ids[0])]) if both[: len(ids)] != list(ids) else ()
    size = min(window, max_length)
    return Text(path.name, ids, prefix, size, max(1, (size - len(prefix)) // 2))


def losses(source: LogitsSource, text: Text, *, progress: Progress | None = None) -> Losses:
    """Loss of each token of a text.

    Args:
        source: gives the logits, or at least the log-probabilities of the tokens that stand there.
        text: what is read.
        progress: called with the tokens done and all tokens.

    Raises:
        NonFiniteError: a loss is NaN or infinite.
    """
    parts: list[Tensor] = []
    notes: list[str] = []
    for ids, new in text.windows():
        scored = source.score(ids, 0)
        if scored.seen_ids != ids or scored.partial:
            notes.append("; ".join(scored.notes) or f"{source.name} ended early")
            break
        parts.append(_nats(scored, ids, new))
        if not torch.isfinite(parts[-1]).all():
            raise NonFiniteError(f"losses of {source.name}", "NaN or infinity", "finite numbers")
        if progress is not None:
            progress(sum(len(p) for p in parts), text.scored)
    return Losses(torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64), tuple(notes))


def _nats(scored: Scored, ids: Sequence[int], new: int) -> Tensor:
    begin = len(ids) - new - 1
    after = ids[begin + 1 :]
    if scored.logits_TV is None:
        rows = (scored.top or ())[begin - scored.first : len(ids) - 1 - scored.first]
        return torch.tensor([-row[token] for row, token in zip(rows, after, strict=True)], dtype=torch.float64)
    picked = []
    # A row at a time is slow and all at once is large: 262144 tokens of vocabulary in float32 are 1 MiB a row.
    for at in range(0, new, 64):
        part = after[at : at + 64]
        rows_RV = scored.logits_TV[begin + at - scored.first :][: len(part)].float()
        chosen = rows_RV.gather(1, torch.tensor(part)[:, None])[:, 0]
        picked.append(rows_RV.logsumexp(-1).double() - chosen.double())
    return torch.cat(picked)


def judge(
    text: Text, target: Losses, reference: Losses, baseline: Losses | None, limit: PerplexityThreshold
) -> TaskResult:
    """Compare two sides on the tokens that both have.

    The mean of the differences may be ``max_increase`` above zero; what is above by less than its standard error
    allows is no failure.

    Args:
        text: what was read.
        target, reference: the losses. baseline: of the reference in the dtype that is served, for the notes.
        limit: of the increase.
    """
    count = min(len(target.nats_T), len(reference.nats_T))
    partial = count < text.scored
    if count < 2:
        why = "; ".join(target.notes) or "no token was answered"
        return TaskResult(f"not run: {why}", TASK, METRIC, partial=True)
    difference = target.nats_T[:count] - reference.nats_T[:count]
    mean, error = float(difference.mean()), float(difference.std()) / math.sqrt(count)
    ours, theirs = float(target.nats_T[:count].mean()), float(reference.nats_T[:count].mean())
    told = f"{mean:+.4f} nats a token (standard error {error:.4f})"
    told += f", perplexity {math.exp(ours):.2f} against {math.exp(theirs):.2f}"
    notes = [
        f"{text.name}: {count} of {text.scored} tokens, windows of {text.window} every {text.stride}",
        *target.notes,
    ]
    if baseline is not None and len(baseline.nats_T) >= count:
        beside = float((baseline.nats_T[:count] - reference.nats_T[:count]).mean())
        notes.append(f"Hugging Face in bf16: {beside:+.4f} nats a token")
    failed = mean - Z * error > limit.max_increase
    ending = ", as far as it was answered" if partial else ""
    return TaskResult(
        f"fail: {told}, limit {limit.max_increase:g}" if failed else f"pass: {told}{ending}",
        TASK,
        METRIC,
        score=ours,
        reference=theirs,
        items=count,
        error=error,
        threshold=limit.max_increase,
        notes=tuple(notes),
        partial=partial,
    )
