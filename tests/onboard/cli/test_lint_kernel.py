"""`onboard lint-kernel` as a user runs it: output, JSON, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run

BAD = "import nki\nimport nki.language as nl\n\n\n@nki.jit\ndef k(x):\n    y = [a for a in x]\n    return nl.load(x)\n"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.py"
    path.write_text(BAD)
    return path


def test_findings_have_file_line_rule_and_what_to_do(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint-kernel", str(bad)]) == Exit.FINDINGS
    out = capsys.readouterr().out
    assert f"{bad}:7:9: error comprehension: " in out and "Write a for loop" in out
    assert f"{bad}:8:12: warn  experimental-name: " in out
    assert "NKI 0.3 to 0.6; source: front end" in out
    assert "1 kernel, 1 function checked: 1 error, 1 warning" in out


def test_json(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint-kernel", str(bad), "--format", "json"]) == Exit.FINDINGS
    found = json.loads(capsys.readouterr().out)
    assert (found["errors"], found["warnings"], found["kernels"]) == (1, 1, ["k"])
    assert found["findings"][0] == {
        "path": str(bad),
        "line": 7,
        "column": 9,
        "rule": "comprehension",
        "severity": "error",
        "text": "a comprehension is not in the subset of Python that NKI parses",
        "action": "Write a for loop that appends to a list.",
        "source": "front end",
        "versions": "0.3 to 0.6",
        "function": "k",
    }


def test_warnings_alone_and_a_version_that_takes_it_exit_with_0(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint-kernel", str(bad), "--nki", "0.7"]) == Exit.OK
    assert "0 errors, 1 warning" in capsys.readouterr().out


def test_a_clean_kernel() -> None:
    from vllm_neuron.nki.kernels import mlp

    assert run(["lint-kernel", mlp.__file__]) == Exit.OK


@pytest.mark.parametrize(
    "text, says",
    [("x = 1\n", "a function under @nki.jit"), ("def (:\n", "expected a Python file"), (None, "No such file")],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str) -> None:
    path = tmp_path / "file.py"
    if text is not None:
        path.write_text(text)
    assert run(["lint-kernel", str(path)]) == Exit.BAD_INPUT
    assert says in capsys.readouterr().err


def test_an_unknown_version(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint-kernel", str(bad), "--nki", "1.0"]) == Exit.BAD_INPUT
    assert "a version from 0.3 to 0.7" in capsys.readouterr().err
