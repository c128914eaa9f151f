"""Try a piece of Python in a fresh process, as vLLM's engine and workers are fresh processes."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

TIMEOUT_S = 180


@dataclass(frozen=True)
class Outcome:
    """What a child did: its last line of output, or the exception and the file that raised it."""

    succeeded: bool
    answer: str = ""
    exception: str = ""
    file: str = ""

    def failure(self) -> str:
        """The original exception with the file and line that raised it."""
        return f"{self.exception} (in {self.file})" if self.file else self.exception


def run(code: str, *arguments: str) -> Outcome:
    """Run `code` in a child of this interpreter with the same environment; it may print one line as its answer."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Outcome(False, exception=f"no answer within {TIMEOUT_S} s")
    if done.returncode == 0:
        lines = done.stdout.strip().splitlines()
        return Outcome(True, answer=lines[-1] if lines else "")
    exception, file = last_exception(done.stderr)
    return Outcome(False, exception=exception or f"exit code {done.returncode}", file=file)


def last_exception(stderr: str) -> tuple[str, str]:
    """The exception line of the last traceback in `stderr`, and `file:line` of its innermost frame in a real file."""
    _, found, traceback = stderr.rpartition("Traceback (most recent call last):")
    if not found:
        lines = stderr.strip().splitlines()
        return (lines[-1] if lines else "", "")
    raised = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    frames = [f for f in re.findall(r'File "([^"<]+)", line (\d+)', traceback) if "importlib" not in f[0]]
    return (raised[0].strip() if raised else "", ":".join(frames[-1]) if frames else "")


LOAD = """
import sys
from importlib.metadata import entry_points
group, name, value = sys.argv[1:4]
point = next(p for p in entry_points(group=group) if (p.name, p.value) == (name, value))
loaded = point.load()
"""

CALL = LOAD + "print(loaded())\n"
