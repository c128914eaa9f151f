"""A source of logits as a model of lm_eval, whose module this file imports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows
from torch import Tensor

from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.errors import ConfigError, NonFiniteError, UnsupportedError

# Requests that are answered, of so many.
Progress = Callable[[int, int], None]
MAX_NEW_TOKENS = 256


@runtime_checkable
class Generates(Protocol):
    """A source that can also continue a text greedily."""

    def generate(self, prompt_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """Greedy continuation, ended by ``max_tokens`` or one of ``stop_ids`` (left out); empty when it fails."""
        ...


class SourceLM(TemplateLM):
    """One side of a comparison: lm_eval asks for texts, the source is given token ids.

    Texts become ids by the tokenizer's own defaults, special tokens included, once for every side: both sides get the
    same ids.

    Args:
        source: gives the logits.
        tokenizer: of the model, from transformers.
        max_length: tokens that the source takes; a longer context loses its beginning, which ``shortened`` counts.
        progress: called after each request.

    Attributes:
        unanswered: ``(task, document)`` of the requests that the source did not answer.
        shortened: requests whose context was cut.
    """

    def __init__(
        self, source: LogitsSource, tokenizer: Any, *, max_length: int, progress: Progress | None = None
    ) -> None:
        super().__init__()
        self.source, self.tokenizer, self.max_length = source, tokenizer, max_length
        self.progress = progress
        self.unanswered: set[tuple[str, int]] = set()
        self.shortened = 0
        self.ended: str | None = None
        self._kept: list[tuple[tuple[int, ...], Tensor, int]] = []

    @property
    def eot_token_id(self) -> int:
        """The end of a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What an empty context becomes: the beginning of a text, or its end when there is no token for that."""
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else int(first)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text; special tokens as the tokenizer adds them by default, unless said otherwise."""
        special = True if add_special_tokens is None else add_special_tokens
        ids: list[int] = self.tokenizer(string, add_special_tokens=special)["input_ids"]
        return ids

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """``(log-probability, is the greedy choice)`` of each continuation; (nan, False) when there was no answer."""
        order = sorted(range(len(requests)), key=lambda i: (requests[i].args[0], len(requests[i].args[1])))
        answers: list[tuple[float, bool]] = [(float("nan"), False)] * len(requests)
        for done, index in enumerate(order, 1):
            request = requests[index]
            context, continuation = request.args
            if context:
                before, after = self._encode_pair(context, continuation)
            else:
                before, after = [self.prefix_token_id], self.tok_encode(continuation, add_special_tokens=False)
            found = self._continuation(before, after)
            if found is None:
                self.unanswered.add((request.task_name, request.doc_id))
            else:
                answers[index] = found
            self._tell(done, len(requests))
        return answers

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        found = (self._continuation(before, after) for _, before, after in requests)
        return [each or (float("nan"), False) for each in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-probability of each whole text, in windows of the source's length."""
        answers = []
        for done, request in enumerate(requests, 1):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            total = 0.0
            for before, after in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length - 1, 1):
                # The window's input overlaps with what it predicts.
                found = self._continuation(before[: len(before) - len(after) + 1], after)
                if found is None:
                    self.unanswered.add((request.task_name, request.doc_id))
                    total = float("nan")
                    break
                total += found[0]
            answers.append(total)
            self._tell(done, len(requests))
        return answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Greedy continuations, cut at the first stop string.

        Raises:
            UnsupportedError: the source only scores given texts, or the task samples.
        """
        source = self.source
        if not isinstance(source, Generates):
            raise UnsupportedError(
                "tasks", requests[0].task_name, "a task that scores given answers", "Name a server: --server URL."
            )
        answers = []
        for done, request in enumerate(requests, 1):
            text, options = request.args
            stops, limit = _generation(options, request.task_name)
            ids = self.tok_encode(text)
            room = self.max_length - limit
            made: tuple[int, ...] = ()
            if self.ended is None:
                made = source.generate(self._cut(ids, max(1, room)), limit, [self.eot_token_id])
            if not made:
                self.unanswered.add((request.task_name, request.doc_id))
            answers.append(_until(self.tokenizer.decode(made, skip_special_tokens=True), stops))
            self._tell(done, len(requests))
        return answers

    def _continuation(self, before: list[int], after: list[int]) -> tuple[float, bool] | None:
        if not after:
            raise ConfigError("tasks", "", "answers of at least one token", "The task's answer is empty.")
        whole = self._cut([*before, *after], self.max_length)
        first = len(whole) - len(after) - 1
        rows = self._rows(tuple(whole), first)
        if rows is None:
            return None
        if isinstance(rows, list):
            pairs = [
                (row[token], max(row, key=row.__getitem__) == token) for row, token in zip(rows, after, strict=True)
            ]
            return sum(p for p, _ in pairs), all(greedy for _, greedy in pairs)
        if not torch.isfinite(rows).all():
            raise NonFiniteError(f"logits of {self.source.name}", "NaN or infinity", "finite numbers")
        logprobs = rows.float().log_softmax(-1).gather(1, torch.tensor(after)[:, None])
        return float(logprobs.double().sum()), bool((rows.argmax(-1) == torch.tensor(after)).all())

    def _cut(self, ids: list[int], room: int) -> list[int]:
        self.shortened += len(ids) > room
        return ids[-room:]

    def _rows(self, whole: tuple[int, ...], first: int) -> Tensor | list[Mapping[int, float]] | None:
        """Rows of the logits at ``first`` and up to the last but one id, or what a source without logits gives."""
        for ids, logits, start in self._kept:
            if ids[: len(whole) - 1] == whole[:-1] and start <= first:
                return logits[first - start : len(whole) - 1 - start]
        if self.ended is not None:
            return None
        scored = self.source.score(whole, 0)
        if scored.seen_ids != whole or scored.partial:
            self.ended = "; ".join(scored.notes) or f"it ran {len(scored.seen_ids)} of {len(whole)} ids"
            return None
        if scored.logits_TV is None:
            top = scored.top or ()
            return [top[t - scored.first] for t in range(first, len(whole) - 1)]
        if self._kept and self._kept[-1][0][: first + 1] != whole[: first + 1]:
            self._kept.clear()
        self._kept.append((whole, scored.logits_TV, scored.first))
        return scored.logits_TV[first - scored.first : len(whole) - 1 - scored.first]

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)


def _generation(options: Mapping[str, Any], task: str) -> tuple[list[str], int]:
    """Stop strings and the most tokens of a request; sampling is refused."""
    if options.get("do_sample") or options.get("temperature", 0.0) not in (0, 0.0, None):
        raise UnsupportedError(f"tasks.{task}", dict(options), "greedy decoding", "A score by sampling proves nothing.")
    stops = options.get("until") or []
    return ([stops] if isinstance(stops, str) else list(stops)), int(options.get("max_gen_toks", MAX_NEW_TOKENS))


def _until(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        if stop:
            text = text.split(stop)[0]
    return text
