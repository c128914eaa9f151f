"""`onboard diff`, `inspect` and `catalog` as a user runs them: output, exit codes, files, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onboard.cli.main import run

LLAMA, GEMMA4 = "meta-llama/Llama-3.1-8B", "google/gemma-4-31B-it"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")


def document(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run([*args, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "diff", LLAMA, GEMMA4)
    assert set(found) == {"a", "b", "rows", "summary"}
    assert found["a"]["name"] == LLAMA and found["b"]["params_total"] == 30697345280
    row = next(r for r in found["rows"] if r["field"] == "head.softcap")
    assert (row["a"], row["b"], row["covered_by"]) == (None, 30.0, "LMHead(softcap=30.0)")
    assert found["summary"]["kv_bytes_per_token"]["a"] == 131072


def test_inspect_json(capsys: pytest.CaptureFixture[str]) -> None:
    from onboard.arch.spec import ArchSpec
    from onboard.facts.api import load

    found = document(capsys, "inspect", "Qwen/Qwen3-8B")
    assert found["params_total"] == 8190735360 and found["params_towers"] == 0
    assert found["kv_bytes_per_token"] == 147456
    assert ArchSpec.from_json(found["arch"]) == load("Qwen/Qwen3-8B").arch


def test_exit_code_only_when_asked_and_only_for_differences() -> None:
    assert run(["diff", LLAMA, GEMMA4]) == 0
    assert run(["diff", LLAMA, GEMMA4, "--exit-code"]) == 1
    assert run(["diff", LLAMA, LLAMA, "--exit-code"]) == 0
    assert run(["diff", LLAMA, "meta-llama/Llama-3.1-70B", "--exit-code"]) == 1


def test_without_b_the_nearest_reference_is_named_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "diff", "google/gemma-2-9b")
    assert found["a"]["name"] == "google/gemma-2-9b" and found["b"]["name"] == "google/gemma-3-27b-it"
    assert found["summary"]["target"] == "a"
    assert "gemma3" in found["summary"]["why"] and "llama3" in found["summary"]["why"]
    assert document(capsys, "diff", "Qwen/Qwen3-8B")["b"]["name"] == LLAMA


@pytest.mark.parametrize("args", [["diff", LLAMA, GEMMA4], ["inspect", GEMMA4], ["diff", "zai-org/GLM-5"]])
def test_text_fits_80_columns_and_has_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert run(args) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out and "…" not in out and "..." not in out.replace("0..", "")


def test_nothing_of_a_value_is_lost_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "diff", LLAMA, GEMMA4)
    assert run(["diff", LLAMA, GEMMA4]) == 0
    squeezed = "".join(capsys.readouterr().out.split())
    for row in found["rows"]:
        told = row["covered_by"] if row["kind"] == "semantic" and row["covered_by"] else row["missing"]
        if told:
            assert "".join(told.split()) in squeezed
        if not isinstance(row["b"], dict | bool | float | None):
            assert str(row["b"]).split()[0] in squeezed


@pytest.mark.parametrize("view", ["text", "json", "markdown", "html"])
def test_output_file_appears_whole_and_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], view: str) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    assert run(["diff", LLAMA, GEMMA4, "--format", view, "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert "gemma-4-31B-it" in path.read_text(encoding="utf-8")


def test_output_that_cannot_be_written_is_an_input_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", LLAMA, GEMMA4, "-o", str(tmp_path / "none" / "x.html")]) == 3
    err = capsys.readouterr().err
    assert "--output" in err and "Name a file in a folder" in err


def test_output_to_a_pipe_or_through_a_link(tmp_path: Path) -> None:
    from onboard.report.write import put

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.PIPE, text=True)
    put("hello", fifo)
    assert reader.communicate(timeout=10)[0] == "hello\n" and fifo.is_fifo()
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    put("new", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new\n"


def test_a_revision_of_a_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert run(["inspect", str(tmp_path), "--revision", "main"]) == 3
    assert "--revision" in capsys.readouterr().err


def test_architecture_for_a_config_that_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
             "vocab_size": 100}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert run(["diff", str(tmp_path)]) == 3
    assert "--architecture" in capsys.readouterr().err
    assert run(["diff", str(tmp_path), "--architecture", "LlamaForCausalLM"]) == 0


def test_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("diff", "inspect"):
        assert run([command, "--schema"]) == 0
        assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize(
    "args",
    [["diff"], ["inspect"], ["diff", LLAMA, "--revision-b", "x"], ["diff", LLAMA, "--format", "pdf"],
     ["inspect", "--no"], ["diff", LLAMA, GEMMA4, LLAMA]],
)  # fmt: skip
def test_usage_errors(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert "Traceback" not in capsys.readouterr().err


BAD = {
    "empty": "",
    "not json": "{",
    "a list": "[]",
    "no architectures": "{}",
    "null sizes": '{"architectures": ["XForCausalLM"], "model_type": "xyz", "hidden_size": null}',
    "a text for a number": '{"model_type": "llama", "hidden_size": "x", "num_hidden_layers": 2}',
    "an encoder": '{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8}',
    "deep": "[" * 100000,
    "twice": '{"hidden_size": 8, "hidden_size": 9}',
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("command", ["diff", "inspect"])
def test_bad_configs_exit_3_with_field_and_value(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert run([command, str(path)]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: ") and "got " in err and "expected " in err and "Traceback" not in err


def test_unknown_names_exit_3_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", "meta-llama/Llama-3.1-8b-instrct", LLAMA]) == 3
    assert "Did you mean" in capsys.readouterr().err
    assert run(["inspect", "no/such", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["exit_code"] == 3


def test_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) >= 90 and {"name", "model_type", "confidence"} == set(listed[0])
    assert run(["catalog", "list", "gemma-4"]) == 0
    assert GEMMA4 in capsys.readouterr().out
    assert run(["catalog", "show", GEMMA4]) == 0
    assert "hidden_size = 5376" in capsys.readouterr().out
    assert run(["catalog", "show", "nope"]) == 3


def test_the_command_loads_no_torch_transformers_or_vllm() -> None:
    code = (
        "import sys; from onboard.cli.main import run; "
        f"code = run(['diff', '{LLAMA}', '{GEMMA4}', '--format', 'html']); "
        "heavy = {'torch', 'transformers', 'vllm', 'numpy', 'huggingface_hub', 'pydantic'} & set(sys.modules); "
        "print(heavy, file=sys.stderr); sys.exit(code or len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_ascii_terminal_gets_ascii_marks() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    code = f"import sys; from onboard.cli.main import run; sys.exit(run(['diff', '{LLAMA}', '{GEMMA4}']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert b"TO WRITE" in done.stdout and done.stdout.isascii()
