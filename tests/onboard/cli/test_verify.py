"""`onboard verify`: views, exit codes, and errors in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onboard.cli.main import run
from tests.onboard.prove.conftest import write_package

MLP = "return x_TH + self.mlp(self.mlp_norm(x_TH))"


def test_proved_in_text_and_in_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_package(tmp_path / "p", "gemma3")
    assert run(["verify", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "copy_of_gemma3 (Gemma3ForCausalLM): proved" in " ".join(out.split()) and "base" in out and err == ""
    assert max(map(len, out.splitlines())) <= max(80, len(str(folder)) + 30)
    assert ": proved, " in (folder / "README.md").read_text()


def test_json_has_the_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "reference_models.llama3", "--only", "whole", "--seed", "5", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["open"], found["seed"], found["partial"]) == ("proved", [], 5, ["whole"])
    assert all({"name", "rel_err", "seconds"} <= check.keys() for check in found["checks"])


@pytest.mark.parametrize(
    ("instead", "code", "said"),
    [
        ("raise NotImplementedError('altup: not written')", 4, "altup: src/copy_of_llama3/model.py:39"),
        ("return x_TH + self.mlp(self.attn_norm(x_TH))", 5, "first divergence: layer 0"),
    ],
)
def test_open_and_failed(
    instead: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_package(tmp_path, "llama3", ("model.py", MLP, instead))
    assert run(["verify", str(folder), "--only", "blocks", "--only", "whole"]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["no.such.module"], 3, "no.such.module"),
        (["reference_models.llama3", "--only", "block"], 3, "Did you mean 'blocks'?"),
        (["reference_models.llama3", "--only", "checkpoint"], 2, "--checkpoint DIR"),
        ([], 2, "PACKAGE"),
    ],
)
def test_wrong_inputs(args: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", *args]) == code
    assert said in capsys.readouterr().err
