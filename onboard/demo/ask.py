"""One question to a served model, with the answer streamed as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from onboard.demo.server import Server
from onboard.errors import RunError


@dataclass(frozen=True)
class Answer:
    """What came back. Times in seconds; `tokens_per_second` counts the tokens after the first."""

    question: str
    text: str
    tokens: int
    first_token_s: float
    tokens_per_second: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return asdict(self)


def ask(server: Server, question: str, *, chat: bool, max_tokens: int, show: Callable[[str], None]) -> Answer:
    """Ask greedily, through the chat endpoint or as a plain completion; `show` gets each piece of text.

    Raises:
        RunError: the server refused the request, broke off, or answered with nothing.
    """
    import openai

    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=600)
    common: dict[str, Any] = {"model": server.model, "temperature": 0.0, "max_tokens": max_tokens}
    common |= {"stream": True, "stream_options": {"include_usage": True}}
    pieces: list[str] = []
    tokens, first, last = 0, 0.0, 0.0
    started = time.monotonic()
    try:
        stream: Any
        if chat:
            stream = client.chat.completions.create(messages=[{"role": "user", "content": question}], **common)
        else:
            stream = client.completions.create(prompt=question, **common)
        for chunk in stream:
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
            text = _text(chunk, chat)
            if text:
                last = time.monotonic()
                first = first or last
                pieces.append(text)
                show(text)
    except openai.OpenAIError as error:
        raise RunError("answer", str(error), "a streamed answer", "Run `onboard doctor`.") from error
    finally:
        client.close()
    if not pieces or tokens < 1:
        raise RunError("answer", "".join(pieces), "at least one token", "Run `onboard doctor`.")
    rate = (tokens - 1) / (last - first) if last > first else 0.0
    return Answer(question, "".join(pieces), tokens, first - started, rate)


def _text(chunk: Any, chat: bool) -> str:
    if not chunk.choices:
        return ""
    choice = chunk.choices[0]
    return (choice.delta.content if chat else choice.text) or ""
