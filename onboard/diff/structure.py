"""``--structure``: the module trees that transformers builds, made on the meta device in a process for each model.

The processes run at once. Whatever goes wrong in one of them (transformers missing, a class that it does not know, a
config that it refuses) becomes the text of its tree; it never stops the diff.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from onboard.facts.api import ModelFacts

TIMEOUT = 300


def trees(models: Sequence[ModelFacts], timeout: float = TIMEOUT) -> list[dict[str, Any]]:
    """One object a model: ``{"class", "params", "params_towers", "modules": [...]}`` or ``{"error": "..."}``.

    Args:
        models: built side by side.
        timeout: seconds for all of them together, at most.
    """
    children = [_start(model) for model in models]
    return [_finish(child, model, timeout) for child, model in zip(children, models, strict=True)]


def _start(model: ModelFacts) -> subprocess.Popen[str] | str:
    request = {
        "config": None if model.origin == "catalog" else dict(model.raw),
        "model_type": model.model_type,
        "fields": dict(model.text),
        "architectures": list(model.architectures),
        "text_only": model.origin == "catalog" and bool(model.section),
    }
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "onboard.diff.meta_tree"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        return f"no process could be started: {error.strerror}"
    assert child.stdin is not None
    try:
        child.stdin.write(json.dumps(request))
        child.stdin.close()
    except BrokenPipeError:
        pass
    child.stdin = None
    return child


def _finish(child: subprocess.Popen[str] | str, model: ModelFacts, timeout: float) -> dict[str, Any]:
    if isinstance(child, str):
        return {"error": child}
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"error": f"{model.name}: transformers took longer than {timeout:g} s"}
    if child.returncode:
        return {"error": f"transformers could not build it: {reason(err) or f'exit code {child.returncode}'}"}
    return checked(out)


def reason(err: str) -> str:
    """The exception's own line of a traceback, else the last line."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (raised or lines or [""])[-1]


def checked(out: str) -> dict[str, Any]:
    """The child's last line, which must be its answer."""
    try:
        answer = json.loads(out.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": "the structure process printed no answer"}
    return answer if isinstance(answer, dict) else {"error": "the structure process printed no object"}
