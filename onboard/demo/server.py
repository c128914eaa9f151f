"""`vllm serve` as a child process on a free loopback port."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onboard.errors import RunError
from vllm_neuron import envs

ENTRY = ("vllm.entrypoints.cli.main", "serve")
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 30
MOST_LINES = 8
EXCEPTION = re.compile(r"(?:^|\] |\) )((?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+)")


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
def serving(folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Serve a model folder; the server and its children are stopped at the end, however it comes.

    Args:
        folder: the model folder; its name is the served model's name.
        options: further options of `vllm serve`.
        environment: variables beside those of this process.

    Raises:
        RunError: the server died or did not become healthy; the message holds the
            exceptions in its log, which is kept.
    """
    port = free_port()
    command = [sys.executable, "-m", *ENTRY, str(folder)]
    command += ["--served-model-name", folder.name, "--host", "127.0.0.1", "--port", str(port), *options]
    log = Path(tempfile.mkdtemp(prefix="onboard-serve-")) / "server.log"
    keep = False
    try:
        with log.open("wb") as out, _child(command, out, environment or {}) as child:
            started = time.monotonic()
            _wait(child, f"http://127.0.0.1:{port}/health", log)
            yield Server(f"http://127.0.0.1:{port}/v1", folder.name, log, time.monotonic() - started)
    except RunError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(log.parent, ignore_errors=True)


@contextmanager
def _child(command: list[str], out: BinaryIO, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C at the terminal reaches it through :func:`_stop` only."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=envs.child(environment),
    )
    try:
        yield child
    finally:
        try:
            _stop(child)
        finally:
            # What a second Ctrl-C, or a server that does not tidy up, would leave behind.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes], health: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise RunError(
                "vllm serve",
                f"exit code {child.returncode}",
                "a server that starts",
                f"Run `onboard doctor`. {_excerpt(log)}",
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
        _excerpt(log),
    )


def _excerpt(log: Path) -> str:
    """The exceptions in the log, first ones first (the last are only consequences), or its end when there are none."""
    lines = log.read_text(errors="replace").splitlines()
    raised = dict.fromkeys(match.group(1) for line in lines if (match := EXCEPTION.search(line)))
    shown = list(raised)[:MOST_LINES] or lines[-MOST_LINES:]
    return "\n".join([f"From its log, which is kept in {log}:", *shown])


def _stop(child: subprocess.Popen[bytes]) -> None:
    for send in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(send)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
