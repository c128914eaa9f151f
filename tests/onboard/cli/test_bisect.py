"""`onboard bisect`: the place in words and as JSON, exit codes, and inputs that can't be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onboard.cli.main import run
from tests.onboard.prove.conftest import write_package
from tests.support.hf import MODELS
from tests.support.tokenizer import save_tokenizer

RESIDUAL = "return x_TH + self.mlp(self.mlp_norm(x_TH))"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    MODELS["llama"].save(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\nonce upon a time\n")
    return path


def test_nothing_is_wrong(checkpoint: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", str(checkpoint), "--prompts", str(prompts)]) == 0
    out, err = capsys.readouterr()
    for said in ("prefill, float32", "batch, float32", "TP 2, float32", "modules, bfloat16", "pass: 6 ways and"):
        assert said in out
    assert max(map(len, out.splitlines())) <= 80
    assert "Traceback" not in err


def test_the_place_of_a_wrong_package(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "return x_TH + self.mlp(self.attn_norm(x_TH))"
    folder = write_package(tmp_path / "p", "llama3", ("model.py", RESIDUAL, wrong))
    args = ["bisect", str(checkpoint), "--package", str(folder), "--dtype", "float32", "--max-length", "64"]
    assert run(args) == 5
    out = " ".join(capsys.readouterr().out.split())
    assert "fail: layer 0, layer" in out and "module layers.0 against model.layers.0" in out


def test_json(checkpoint: Path, tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_package(tmp_path / "p", "llama3", ("model.py", "act=c.hidden_act", 'act="gelu"'))
    args = ["bisect", str(checkpoint), "--package", str(folder), "--prompts", str(prompts), "--format", "json"]
    assert run(args) == 5
    found = json.loads(capsys.readouterr().out)
    place = found["place"]
    assert (place["layer"], place["block"], place["part"], place["kind"]) == (0, "mlp", "activation", "local")
    assert place["ours"] == "layers.0.mlp" and place["theirs"] == "model.layers.0.mlp" and place["phase"] == "prefill"
    assert [way["name"] for way in found["ways"]] == ["prefill"]


def test_code_of_a_package_that_stops_is_named(
    checkpoint: Path, tmp_path: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_package(tmp_path / "p", "llama3", ("model.py", RESIDUAL, "return x_TH + self.mlp(x_TH[:, 1:])"))
    assert run(["bisect", str(checkpoint), "--package", str(folder), "--prompts", str(prompts)]) == 5
    err = capsys.readouterr().err
    assert "error: package copy_of_llama3" in err and "RuntimeError" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["no/such/folder"], 3, "no folder"),
        ([], 2, "MODEL"),
        (["{checkpoint}", "--prompts", "no.txt"], 3, "no.txt"),
        (["{checkpoint}", "--package", "no.such.module"], 3, "no.such.module"),
        (["{checkpoint}", "--max-length", "1"], 2, "--max-length"),
    ],
)
def test_wrong_inputs(
    args: list[str], code: int, said: str, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bisect", *(each.format(checkpoint=checkpoint) for each in args)]) == code
    assert said in capsys.readouterr().err
