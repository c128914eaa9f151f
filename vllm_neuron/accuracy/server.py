"""A running server as a source: the highest log-probabilities, over vLLM's OpenAI-compatible HTTP API.

Prefilled positions come from the log-probabilities of the prompt. Decoded ones come from greedy decoding, which goes on
for as long as the server picks the gold token; where it picks another, the request is made again with the gold token
behind, so that the next position is prefilled once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_neuron.accuracy.http_json import Endpoint, NoAnswerError, RequestRefusedError
from vllm_neuron.accuracy.sources import Scored
from vllm_neuron.errors import ConfigError, UnsupportedError

TOP = 20
Row = Mapping[int, float]
# Texts whose tokens show another tokenizer: spaces, code, digits, accents, other scripts, an emoji.
PROBES = (
    "The quick brown fox.  Two spaces,\nand a new line.",
    "def f(x):\n    return x[1:] + 12345.678e-9",
    "Größe, façade, naïve; Ελλάδα, Москва, 東京, مرحبا, 🙂",
)


@dataclass
class ServerSource:
    """A :class:`~vllm_neuron.accuracy.sources.LogitsSource` that shows ``top`` only; made by :func:`connect`.

    Attributes:
        endpoint: the server.
        model: the name it serves the model by.
        vocab_size: of the reference, which the server was checked against.
        max_model_len: tokens that the server takes.
        tokenizer_id: of the reference's tokenizer, with whose ids the server's agree on the probes.
        top: log-probabilities asked for at each position.
        notes: what the checks left open.
        ended: why the server is not asked any more; None while it answers.
    """

    endpoint: Endpoint
    model: str
    vocab_size: int
    max_model_len: int
    tokenizer_id: str | None
    top: int = TOP
    notes: tuple[str, ...] = ()
    ended: str | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """``server http://127.0.0.1:8000 (my-model)``."""
        return f"server {self.endpoint.url} ({self.model})"

    @property
    def dtype(self) -> str:
        """Not known over HTTP."""
        return "unknown"

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`; ``partial`` when the server ends on the way.

        Raises:
            UnsupportedError: the server does not say which ids it ran, or gives no log-probabilities.
            RequestRefusedError: it refuses the request, for instance because the prompt is too long.
        """
        ids = tuple(prompt_ids)
        walk = _Walk(ids, len(ids) - steps)
        while self.ended is None and not walk.done:
            try:
                walk.take(self._complete(walk.prompt, len(ids) - len(walk.prompt) + 1, first=not walk.rows))
            except NoAnswerError as error:
                self.ended = str(error)
        notes = [f"only the {self.top} highest log-probabilities of each position are seen"]
        if walk.again:
            notes.append(f"{walk.again} of {steps} decoded positions were prefilled, since another token was picked")
        if self.ended is not None:
            notes.append(f"the server ended: {self.ended}")
        return Scored(
            None, walk.seen, top=tuple(walk.rows), partial=self.ended is not None and not walk.done, notes=tuple(notes)
        )

    def generate(self, prompt_ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """Greedy continuation without the stop token; empty when the server ended."""
        if self.ended is not None:
            return ()
        body = {"max_tokens": max_tokens, "stop_token_ids": list(stop_ids)}
        try:
            choice = self._ask(prompt_ids, body)
        except NoAnswerError as error:
            self.ended = str(error)
            return ()
        made = tuple(choice["token_ids"])
        return made[:-1] if made and made[-1] in stop_ids else made

    def _complete(self, prompt: Sequence[int], max_tokens: int, *, first: bool) -> dict[str, Any]:
        body = {"max_tokens": max_tokens, "logprobs": self.top, "ignore_eos": True}
        body |= {"return_tokens_as_token_ids": True}
        if first and len(prompt) > 1:
            body["prompt_logprobs"] = self.top
        return self._ask(prompt, body)

    def _ask(self, prompt: Sequence[int], options: Mapping[str, Any]) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(prompt), "temperature": 0, "return_token_ids": True, **options}
        answer = self.endpoint.post("/v1/completions", body)
        try:
            choice: dict[str, Any] = answer["choices"][0]
            seen, made = choice.get("prompt_token_ids"), choice.get("token_ids")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise NoAnswerError(f"{self.endpoint.url}/v1/completions", answer, "a completion") from None
        if seen is None or made is None:
            raise UnsupportedError("--server", self.endpoint.url, "a server that returns token ids, as vLLM does")
        return choice


@dataclass
class _Walk:
    """What is known so far of one prompt's rows.

    Attributes:
        ids: what was asked for. prefilled: how many of them the first request holds.
        rows: one a position, in order. seen: the ids that were run.
        again: positions that were prefilled though they should be decoded.
    """

    ids: tuple[int, ...]
    prefilled: int
    rows: list[Row] = field(default_factory=list)
    seen: tuple[int, ...] = ()
    again: int = 0
    wrong: bool = False

    @property
    def prompt(self) -> tuple[int, ...]:
        """The next request's: all ids whose rows are there, and the one after them."""
        return self.ids[: max(self.prefilled, len(self.rows) + 1)]

    @property
    def done(self) -> bool:
        """Every position has its row, or other ids were run than asked for."""
        return self.wrong or len(self.rows) == len(self.ids)

    def take(self, choice: Mapping[str, Any]) -> None:
        """Add the rows of one completion."""
        prompt = self.prompt
        seen = tuple(int(i) for i in choice["prompt_token_ids"])
        if seen != prompt:
            self.seen, self.wrong = seen, True
            return
        if self.rows:
            self.again += 1
        elif len(prompt) > 1:
            given = choice.get("prompt_logprobs")
            if given is None or len(given) != len(prompt):
                raise UnsupportedError("--server", given, "log-probabilities of the prompt", "vLLM gives them.")
            self.rows += [{int(i): float(each["logprob"]) for i, each in row.items()} for row in given[1:]]
        made = tuple(int(i) for i in choice["token_ids"])
        tops = (choice.get("logprobs") or {}).get("top_logprobs")
        if not made or tops is None or len(tops) != len(made):
            raise UnsupportedError("--server", tops, "log-probabilities of the tokens", "vLLM gives them.")
        for token, top in zip(made, tops, strict=True):
            self.rows.append({int(name.removeprefix("token_id:")): float(each) for name, each in top.items()})
            at = len(self.rows)
            if at >= len(self.ids) or token != self.ids[at]:
                break
        self.seen = self.ids[: len(self.rows)]


def connect(
    url: str, *, tokenizer: Any, tokenizer_id: str | None, vocab_size: int, timeout: float = 120.0, key: str = ""
) -> ServerSource:
    """Find the served model and refuse one that is not the reference's.

    Args:
        url: of the server.
        tokenizer: of the reference, from transformers. tokenizer_id: its hash, for the comparison's own check.
        vocab_size: of the reference.
        timeout: seconds that one answer may take.
        key: API key.

    Raises:
        NoAnswerError: nobody answers there.
        ConfigError: its tokenizer or its vocabulary is another; it serves several models.
        UnsupportedError: it is no server that can be asked.
    """
    endpoint = Endpoint.parse(url, timeout=timeout, key=key)
    name, length = _served(endpoint)
    for text in PROBES:
        ours = list(tokenizer(text)["input_ids"])
        theirs = _tokens(endpoint, name, text)
        if ours != theirs:
            raise ConfigError(
                "--server tokenizer",
                f"ids {theirs}",
                f"the reference's ids {ours} for {text!r}",
                "The server serves another model, or other special tokens.",
            )
    source = ServerSource(endpoint, name, vocab_size, length, tokenizer_id)
    _check_vocabulary(source)
    return source


def _served(endpoint: Endpoint) -> tuple[str, int]:
    """Name and greatest length of the one base model."""
    try:
        answer = endpoint.get("/v1/models")
        models = [m for m in answer["data"] if not m.get("parent")]
        names = [str(m["id"]) for m in models]
        lengths = [int(m["max_model_len"]) for m in models]
    except (RequestRefusedError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError("--server", f"{endpoint.url}: {error}", "a vLLM server of the OpenAI API") from None
    roots = {str(m.get("root", m["id"])) for m in models}
    if len(roots) != 1:
        raise ConfigError("--server", ", ".join(names), "a server of one model")
    return names[0], lengths[0]


def _tokens(endpoint: Endpoint, model: str, text: str) -> list[int]:
    try:
        answer = endpoint.post("/tokenize", {"model": model, "prompt": text})
        return [int(i) for i in answer["tokens"]]
    except (RequestRefusedError, KeyError, TypeError) as error:
        raise UnsupportedError("--server", f"{endpoint.url}/tokenize: {error}", "a server that tokenizes") from None


def _check_vocabulary(source: ServerSource) -> None:
    """The last id of the reference's vocabulary is taken, and the one after it is not."""
    last = source.vocab_size - 1
    for token, wanted in ((last, True), (last + 1, False)):
        try:
            source.endpoint.post("/v1/completions", {"model": source.model, "prompt": [token], "max_tokens": 1})
            taken = True
        except RequestRefusedError as error:
            if "vocab" not in str(error.value):
                raise UnsupportedError("--server", error.value, "a server that takes token ids as prompt") from None
            taken = False
        if taken != wanted:
            size = f"more than {last + 1}" if taken else f"at most {last}"
            raise ConfigError("--server vocabulary", f"{size} tokens", f"the reference's {source.vocab_size}")
