"""`onboard new` and `onboard update` as commands: questions, output, exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from onboard.cli import main as cli
from onboard.cli import verify
from onboard.cli.exits import Exit
from onboard.prove.proof import Check, OpenFeature, Proof, Status
from onboard.scaffold import new
from tests.onboard.scaffold import fake

MODEL = "meta-llama/Llama-3.1-8B"
PASSED = Check("base", "whole", "whole model", 1e-7, 0.1)
PROOFS = {
    "proved": Proof("mymodel", "LlamaForCausalLM", (PASSED,)),
    "open": Proof("mymodel", "LlamaForCausalLM", (PASSED,), open=(OpenFeature("altup", "X", "model.py", 1),)),
    "failed": Proof("mymodel", "LlamaForCausalLM", (Check("base", "whole", "all", 1.0, 0.1, Status.FAILED),)),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, the fake renderer, no terminal, and a proof that is not to be run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "code_of", fake.model_code)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(verify, "verified", lambda *_, **__: pytest.fail("a proof ran"))
    return tmp_path


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def prove(monkeypatch: pytest.MonkeyPatch, verdict: str) -> list[Path]:
    asked: list[Path] = []

    def verified(package: Path, *, show: bool) -> Proof:
        asked.append(package)
        return PROOFS[verdict]

    monkeypatch.setattr(verify, "verified", verified)
    return asked


@pytest.mark.parametrize(
    ("verdict", "code", "said"),
    [
        ("proved", Exit.OK, "Next: pip install -e mymodel"),
        ("open", Exit.OPEN, "Next: write what is open"),
        ("failed", Exit.FAILED, "Next: mend mymodel/src"),
    ],
)
def test_the_verdict_decides_the_exit_code(monkeypatch, capsys, verdict, code, said):
    asked = prove(monkeypatch, verdict)
    assert cli.run(["new", "mymodel", "--from", MODEL]) == code
    assert asked == [Path("mymodel")]
    out = capsys.readouterr().out
    assert "LlamaForCausalLM from meta-llama/Llama-3.1-8B" in out
    assert "CPU mode" in out
    assert said in out


@pytest.mark.parametrize("verdict", ["proved", "open", "failed"])
def test_json_is_one_document(monkeypatch, capsys, verdict):
    prove(monkeypatch, verdict)
    cli.run(["new", "mymodel", "--from", MODEL, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict == document["proof"]["verdict"]
    assert document["mode_words"].startswith("CPU mode")
    assert document["architecture"] == "LlamaForCausalLM"
    assert document["class_name"] == "MymodelForCausalLM"
    assert "src/mymodel/model.py" in document["files"]
    assert "reference model" in document["warnings"][0]


def test_no_verify_runs_no_proof(capsys):
    assert cli.run(["new", "mymodel", "--from", MODEL, "--no-verify"]) == Exit.OK
    assert "Next: onboard verify mymodel && pip install -e mymodel" in capsys.readouterr().out
    assert "Not proved yet" in Path("mymodel/README.md").read_text()


def test_no_verify_with_open_features_says_so(monkeypatch, capsys):
    monkeypatch.setattr(new, "code_of", fake.model_code_with_open)
    assert cli.run(["new", "mymodel", "--from", MODEL, "--no-verify"]) == Exit.OPEN
    assert "open: altup (Gemma3nTextAltUp, models/gemma3n/modeling_gemma3n.py)" in capsys.readouterr().out


def test_output_names_the_folder(tmp_path):
    assert cli.run(["new", "mymodel", "--from", MODEL, "--no-verify", "--output", str(tmp_path / "x")]) == Exit.OK
    assert (tmp_path / "x" / "src" / "mymodel" / "model.py").is_file()


@pytest.mark.parametrize("given", [["mymodel"], ["mymodel", "--format", "json"], ["--from", MODEL], []])
def test_without_a_terminal_nothing_is_asked(capsys, given, tmp_path):
    assert cli.run(["new", *given]) == Exit.USAGE
    said = "".join(capsys.readouterr())
    assert ("NAME" if "--from" in given else "--from") in said
    assert "--defaults" in said
    assert list(tmp_path.iterdir()) == []


def test_defaults_ask_nothing(capsys):
    assert cli.run(["new", "--defaults", "--no-verify"]) == Exit.OK
    assert json.loads(Path("mymodel/onboard.json").read_text())["model"] == "meta-llama/Llama-3.2-1B"
    assert cli.run(["new", "other", "--from", MODEL, "--defaults", "--no-verify"]) == Exit.OK
    assert json.loads(Path("other/onboard.json").read_text())["model"] == MODEL


def test_questions_have_defaults(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Terminal(f"my-model\n{MODEL}\nn\n"))
    assert cli.run(["new"]) == Exit.OK
    assert json.loads(Path("my-model/onboard.json").read_text())["model"] == MODEL
    asked = prove(monkeypatch, "proved")
    monkeypatch.setattr(sys, "stdin", Terminal("\n\n\n"))
    assert cli.run(["new"]) == Exit.OK
    assert asked == [Path("mymodel")]


def test_what_is_given_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal(f"{MODEL}\nn\n"))
    assert cli.run(["new", "given"]) == Exit.OK
    monkeypatch.setattr(sys, "stdin", Terminal("asked\n"))
    assert cli.run(["new", "--from", MODEL, "--no-verify"]) == Exit.OK
    assert Path("given").is_dir() and Path("asked").is_dir()


def test_I1_and_I3_refusals_exit_with_3(capsys, tmp_path):
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "notes.txt").write_text("mine")
    for name, said in (("mymodel", "--force"), ("../evil", "parts of a path"), ("class", "class_model")):
        assert cli.run(["new", name, "--from", MODEL]) == Exit.BAD_INPUT
        assert said in capsys.readouterr().err
    assert [p.name for p in tmp_path.rglob("*")] == ["mymodel", "notes.txt"]


def made(name: str = "mymodel") -> Path:
    assert cli.run(["new", name, "--from", MODEL, "--no-verify"]) == Exit.OK
    return Path(name)


def test_update_with_nothing_to_do(capsys):
    made()
    assert cli.run(["update", "mymodel"]) == Exit.OK
    assert capsys.readouterr().out.endswith("Up to date.\n")


def test_update_lists_files_and_conflicts(monkeypatch, capsys):
    path = made() / "src/mymodel/model.py"
    path.write_text(path.read_text().replace("super().__init__(c)", "super().__init__(c)  # mine"))
    monkeypatch.setattr(new, "code_of", fake.model_code_with_open)
    capsys.readouterr()
    before = path.read_text()
    assert cli.run(["update", "mymodel", "--dry-run"]) == Exit.OPEN
    assert path.read_text() == before
    assert "files would change" in capsys.readouterr().out
    assert cli.run(["update", "mymodel", "--format", "json"]) == Exit.OPEN
    document = json.loads(capsys.readouterr().out)
    (place,) = document["conflicts"]
    line = int(place.removeprefix("src/mymodel/model.py:"))
    assert path.read_text().splitlines()[line - 1] == "<<<<<<< yours"
    assert cli.run(["update", "mymodel"]) == Exit.BAD_INPUT
    assert place in capsys.readouterr().err


def test_update_in_words(monkeypatch, capsys):
    made()
    monkeypatch.setattr(new, "code_of", fake.model_code_with_open)
    capsys.readouterr()
    assert cli.run(["update", "mymodel"]) == Exit.OK
    out = capsys.readouterr().out
    assert "updated   src/mymodel/model.py" in out
    assert "4 files changed. Run `onboard verify` again." in out


def test_update_of_something_else(capsys, tmp_path):
    assert cli.run(["update", str(tmp_path)]) == Exit.BAD_INPUT
    assert "onboard new" in capsys.readouterr().err


def test_leaving_at_a_question_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert cli.run(["new", "mymodel"]) == Exit.INTERRUPTED
    assert "bug" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
