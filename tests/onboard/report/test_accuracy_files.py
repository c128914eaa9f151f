"""A report's files: whole or not there, on a disk that is full too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onboard.report.accuracy_files import prepare, write
from tests.support.accuracy import failing, passing
from vllm_neuron.accuracy.results import Report
from vllm_neuron.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
# A limit on the size of files stands in for a disk that is full: writing beyond it fails half-way.
FULL = """
import resource, signal, sys
from pathlib import Path
from onboard.report.accuracy_files import write
from tests.support.accuracy import passing
from vllm_neuron.errors import ConfigError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write(passing(), Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def test_three_files_of_one_report(tmp_path):
    folder = prepare(tmp_path / "a" / "b")
    assert [path.name for path in write(failing(), folder)] == ["report.json", "report.html", "report.md"]
    assert Report.from_json(json.loads((folder / "report.json").read_text())).place == failing().place
    write(passing(), folder)
    assert "what BF16 explains" in (folder / "report.md").read_text() and len(list(folder.iterdir())) == 3


def test_a_full_disk_leaves_what_was_there(tmp_path):
    (tmp_path / "report.json").write_text("old")
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert "--report" in done.stdout and "File too large" in done.stdout, done.stdout + done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.json", "old")]


def test_an_earlier_report_is_removed_and_nothing_else(tmp_path):
    write(passing(), tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]
    (tmp_path / "report.md").mkdir()
    with pytest.raises(ConfigError, match="--report"):
        prepare(tmp_path)


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--report"):
        prepare(tmp_path / "file")
    with pytest.raises(ConfigError, match="--report"):
        prepare(tmp_path / "file" / "below")
