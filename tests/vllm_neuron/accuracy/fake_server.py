"""A small server of the OpenAI API with one canned model, which can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCAB = 50


def encode(text: str) -> list[int]:
    """The canned tokenizer: one token a character, behind a beginning."""
    return [1, *(2 + ord(c) % (VOCAB - 2) for c in text)]


def row(position: int, *, gold: int | None = None) -> dict[int, float]:
    """Log-probabilities at one position: the greedy choice is the position itself."""
    found = {position % VOCAB: -0.5, (position + 1) % VOCAB: -1.5}
    if gold is not None:
        found.setdefault(gold, -9.0)
    return found


class FakeServer:
    """Answers on the loopback until it is closed.

    Attributes:
        change: what is done to an answer's document before it is sent: path, document -> document; it may raise
            ``ConnectionError`` to drop the connection or return bytes to be sent as they are.
        asked: the bodies of ``/v1/completions``.
    """

    def __init__(
        self, change: Callable[[str, Any], Any] = lambda path, document: document, *, wait: float = 0.0
    ) -> None:
        self.change, self.wait, self.asked = change, wait, []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "canned", "root": "/models/canned", "max_model_len": 64}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    self.reply(200, {"tokens": encode(body["prompt"])})
                    return
                outer.asked.append(body)
                if max(body["prompt"]) >= VOCAB:
                    self.reply(400, {"error": {"message": "Token id 99 is out of vocabulary"}})
                    return
                self.reply(200, outer.complete(body))

            def reply(self, status: int, document: Any) -> None:
                time.sleep(outer.wait)
                try:
                    document = outer.change(self.path, document)
                except ConnectionError:
                    self.close_connection = True
                    return
                if isinstance(document, int):
                    status, document = document, {"error": {"message": "broken"}}
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """What vLLM would answer; the greedy token after position t is t."""
        prompt = body["prompt"]
        first = len(prompt) - 1
        made = [(first + i) % VOCAB for i in range(body["max_tokens"])]
        choice: dict[str, Any] = {"prompt_token_ids": prompt, "token_ids": made, "logprobs": None}
        if body.get("prompt_logprobs") is not None:
            rows = [row(t, gold=prompt[t + 1]) for t in range(first)]
            choice["prompt_logprobs"] = [None, *({str(i): {"logprob": p} for i, p in each.items()} for each in rows)]
        if body.get("logprobs") is not None:
            tops = [{f"token_id:{i}": p for i, p in row(first + i).items()} for i in range(len(made))]
            choice["logprobs"] = {"top_logprobs": tops}
        return {"choices": [choice]}
