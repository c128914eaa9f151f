"""A validation's report as files in a folder: HTML, JSON and Markdown, each whole or not there."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from onboard.report import accuracy_html, accuracy_markdown
from onboard.report.write import put
from vllm_neuron.accuracy.results import Report
from vllm_neuron.errors import ConfigError

NAMES = ("report.json", "report.html", "report.md")


def prepare(folder: Path) -> Path:
    """Make the folder, try that it takes files, and remove an earlier report: a run that ends early may not leave it.

    Only files of the three names are removed.

    Raises:
        ConfigError: it is no folder, or can't be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        expected = f"a folder that can be written to ({error.strerror})"
        raise ConfigError("--report", str(folder), expected, "Name another folder.") from None
    return folder


def write(report: Report, folder: Path) -> list[Path]:
    """Write the three files and return their paths; the JSON, from which the others can be made, first.

    Raises:
        ConfigError: a file can't be written; those of an earlier run are left as they were.
    """
    document = json.dumps(report.to_json(), separators=(",", ":"), allow_nan=False)
    texts = (document, accuracy_html.render(report), accuracy_markdown.render(report))
    for name, text in zip(NAMES, texts, strict=True):
        put(text, folder / name, option="--report")
    return [folder / name for name in NAMES]
