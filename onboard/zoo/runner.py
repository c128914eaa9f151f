"""Many model types, each in a child process, a few at a time; what is done is kept and need not be done again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onboard.zoo.one import versions
from onboard.zoo.row import Row
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError

TIMEOUT_S = 900.0
POLL_S = 0.05
# One thread for each child, and nothing is fetched.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

# Model type, folder of its package, file of its result -> command line.
Command = Callable[[str, Path, Path], Sequence[str]]
Progress = Callable[[str, int, int], None]


@dataclass
class Child:
    """A running process and what it works on."""

    model_type: str
    process: subprocess.Popen[bytes]
    log: Path
    begin: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        """End it with everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def command(self_test: bool = False) -> Command:
    """The child's command line."""
    more = ["--self-test"] if self_test else []

    def line(model_type: str, folder: Path, result: Path) -> Sequence[str]:
        return [sys.executable, "-m", "onboard.zoo.one", model_type, str(folder), str(result), *more]

    return line


def run_all(
    models: Mapping[str, str],
    folder: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    line: Command | None = None,
    timeout: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> list[Row]:
    """Run the children and collect their rows, in the order of ``models``.

    Args:
        models: model type -> class.
        folder: holds a result, a log and a package of each.
        jobs: children at a time.
        resume: keep results of the same versions that are there.
        line: the child's command line, :func:`command` by default.
        timeout: seconds for each child.
        progress: called with what runs now, models done and models in all.

    Raises:
        ConfigError: ``jobs`` or ``timeout`` below what makes sense.
    """
    if jobs < 1 or timeout <= 0:
        name, value = ("--jobs", jobs) if jobs < 1 else ("timeout", timeout)
        raise ConfigError(name, value, "a number above 0")
    folder.mkdir(parents=True, exist_ok=True)
    rows = {name: row for name in models if resume and (row := kept(folder, name))}
    waiting = [name for name in models if name not in rows]
    line = line or command()
    running: list[Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(start(waiting.pop(0), folder, line))
            for child in list(running):
                row = ended(child, folder, models[child.model_type], timeout)
                if row is not None:
                    running.remove(child)
                    rows[child.model_type] = row
            if progress is not None:
                progress(", ".join(child.model_type for child in running) or "done", len(rows), len(models))
            time.sleep(POLL_S)
    finally:
        for child in running:
            child.stop()
    return [rows[name] for name in models]


def start(model_type: str, folder: Path, line: Command) -> Child:
    """Start a child in a process group of its own, which Ctrl-C does not reach; the parent ends it."""
    result, log = folder / f"{model_type}.json", folder / f"{model_type}.log"
    result.unlink(missing_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(line(model_type, folder / "packages" / model_type, result)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=envs.child(ENVIRONMENT),
            start_new_session=True,
        )
    return Child(model_type, process, log)


def ended(child: Child, folder: Path, architecture: str, timeout: float) -> Row | None:
    """The row of a child that has ended or is out of time; None while it runs."""
    spent = time.monotonic() - child.begin
    if child.process.poll() is None:
        if spent < timeout:
            return None
        child.stop()
        message = f"no answer within {timeout:g} s"
        row = Row(child.model_type, architecture, "timeout", message=message, seconds=round(spent, 1))
    else:
        row = kept(folder, child.model_type) or Row(
            child.model_type,
            architecture,
            "crashed",
            message=f"exit code {child.process.returncode}: {last_line(child.log)}",
            seconds=round(spent, 1),
        )
    return row


def kept(folder: Path, model_type: str) -> Row | None:
    """The result that is there, when it is one of the versions that are installed."""
    try:
        row = Row.from_json(json.loads((folder / f"{model_type}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        return None
    return row if row.versions == versions() and row.model_type == model_type else None


def last_line(log: Path) -> str:
    """The last line that a child wrote."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"
