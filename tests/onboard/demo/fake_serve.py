"""A stand-in for `vllm serve` with its health check and streaming endpoints: `python -m fake_serve FOLDER --port N`.

It asks the real registry which package serves the folder's model, where a package is asked for.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

WORDS = ["The", " answer", " is", " Paris."]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        chat = self.path.endswith("/chat/completions")
        for word in WORDS:
            choice = {"index": 0, "delta": {"content": word}} if chat else {"index": 0, "text": word}
            self._send({"id": "x", "object": "chunk", "model": request["model"], "created": 0, "choices": [choice]})
        usage = {"prompt_tokens": 3, "completion_tokens": len(WORDS), "total_tokens": 7}
        self._send({"id": "x", "object": "chunk", "model": "m", "created": 0, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *_):
        pass


def say_who_serves(folder: Path) -> None:
    from vllm_neuron.model.registry import resolve

    logging.basicConfig(level=logging.INFO)
    for architecture in json.loads((folder / "config.json").read_text())["architectures"]:
        resolve(architecture)


if __name__ == "__main__":
    if "--die" in sys.argv:
        sys.exit("no such device")
    if "--stubborn" in sys.argv:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("VLLM_NEURON_MODEL_PACKAGE"):
        say_who_serves(Path(sys.argv[1]))
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
