"""Templates of code, filled in and formatted."""

from __future__ import annotations

import subprocess
from typing import Any

from onboard.scaffold.shipped import templates
from vllm_neuron.errors import ConfigError


def rendered(template: str, **context: Any) -> str:
    """A template of ``templates/code`` filled in, as Python that ``ruff`` has nothing to say about."""
    import jinja2

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    source = (templates() / "code" / template).read_text(encoding="utf-8")
    return formatted(environment.from_string(source).render(**context))


def formatted(source: str) -> str:
    """Python source as ``ruff format`` and its import sorting write it.

    Raises:
        ConfigError: the text is not Python.
    """
    import ruff

    tool = ruff.find_ruff_bin()
    for arguments in (
        ["check", "--fix-only", "--quiet", "--isolated", "--select=I,F401", "--line-length=120"],
        ["format", "--quiet", "--isolated", "--line-length=120"],
    ):
        done = subprocess.run(
            [tool, *arguments, "--stdin-filename=model.py", "-"], input=source, capture_output=True, text=True
        )
        if done.returncode:
            raise ConfigError("rendered code", done.stderr.strip()[:300], "Python", "This is a fault of the renderer.")
        source = done.stdout
    return source
