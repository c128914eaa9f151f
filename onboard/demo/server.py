"""`vllm serve` as a child process on a free loopback port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onboard.errors import RunError

ENTRY = ("vllm.entrypoints.cli.main", "serve")
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 30
LOG_TAIL = 30


@dataclass(frozen=True)
class Server:
    """A server that answers. `seconds` is the time from its start until it was healthy."""

    url: str
    model: str
    log: Path
    seconds: float


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """Serve a model folder with this process's environment; the server is stopped at the end, however it comes.

    Args:
        folder: the model folder; its name is the served model's name.
        options: further options of `vllm serve`.

    Raises:
        RunError: the server died or did not become healthy; the message holds the end of its log.
    """
    port = free_port()
    command = [sys.executable, "-m", *ENTRY, str(folder)]
    command += ["--served-model-name", folder.name, "--host", "127.0.0.1", "--port", str(port), *options]
    with tempfile.TemporaryDirectory(prefix="onboard-serve-") as room:
        log = Path(room) / "server.log"
        with log.open("wb") as out:
            started = time.monotonic()
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                _wait(child, f"http://127.0.0.1:{port}/health", log)
                yield Server(f"http://127.0.0.1:{port}/v1", folder.name, log, time.monotonic() - started)
            finally:
                _stop(child)


def _wait(child: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RunError(
                "vllm serve",
                f"exit code {child.returncode}",
                "a server that starts",
                f"Run `onboard doctor`. The end of its log:\n{_tail(log)}",
            )
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        time.sleep(0.2)
    raise RunError(
        "vllm serve",
        f"not healthy after {START_TIMEOUT_S} s",
        "a server that answers",
        f"The end of its log:\n{_tail(log)}",
    )


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:])


def _stop(child: subprocess.Popen[bytes]) -> None:
    for send in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(send)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
