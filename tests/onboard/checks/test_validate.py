"""`onboard validate` as a process on an engine, against a real server that is killed half-way, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run
from tests.onboard.prove.conftest import write_package
from tests.support.hf import MODELS
from tests.support.tokenizer import save_tokenizer
from vllm_neuron.accuracy.results import Report

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny Gemma 3, whose windows are 40 tokens, with a tokenizer."""
    made = tmp_path_factory.mktemp("tiny")
    MODELS["gemma3"].save(made)
    save_tokenizer(made)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_DIR", str(tmp_path / "goldens"))


def process(*arguments: str | Path, **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLLM_NEURON_CPU_THREADS": "1"}
    command = [sys.executable, "-m", "onboard.cli.main", "validate", *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **(pipes | options))


def test_the_engine_in_this_process_passes_and_json_is_alone_on_stdout(folder, tmp_path):
    report = tmp_path / "report"
    child = process(folder, "--limit", "4", "--chunk", "64", "--report", report, "--format", "json")
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, out[-3000:] + err[-3000:]
    found = Report.from_json(json.loads(out))
    assert found.passed and [level.level for level in found.levels] == [3, 2, 1]
    two = found.level(2)
    assert all(prompt.layers for prompt in two.prompts) and "window" not in " ".join(two.not_covered)
    assert "on vLLM, bfloat16, chunks of 64" in found.target and not any("chunks" in note for note in found.notes)
    assert sorted(path.name for path in report.iterdir()) == ["report.html", "report.json", "report.md"]
    assert Report.from_json(json.loads((report / "report.json").read_text())) == found
    assert [line for line in err.splitlines() if not line.startswith("report: ")] == []


@pytest.mark.slow
def test_a_wrong_package_fails_with_its_place_through_the_engine(folder, tmp_path):
    """A copy of the reference model whose windows are one token short."""
    sources = tmp_path / "broken" / "src" / "broken"
    shutil.copytree(ROOT / "reference_models" / "gemma3", sources)
    for path in sources.glob("*.py"):
        text = path.read_text().replace("reference_models.gemma3", "broken")
        path.write_text(text.replace("else c.sliding_window,", "else c.sliding_window - 1,"))
    child = process(folder, "--package", tmp_path / "broken", "--level", "2", "--format", "json")
    out, err = child.communicate(timeout=300)
    assert child.returncode == Exit.FAILED, out[-3000:] + err[-3000:]
    found = Report.from_json(json.loads(out))
    assert found.package == "broken" and "broken on vLLM" in found.target
    assert found.place is not None and found.place.block == "attn" and found.place.layer == 0, found.place
    short = found.level(2).prompts[0]
    assert short.passed and len(short.ids) < 40


def test_ctrl_c_ends_it_cleanly(folder, tmp_path):
    report = tmp_path / "report"
    child = process(folder, "--report", report)
    deadline = time.monotonic() + 120
    while not report.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == Exit.INTERRUPTED and out == ""
    assert err.strip().splitlines()[-1] == "interrupted" and "Traceback" not in err
    assert list(report.iterdir()) == []


# The command in this process, which sends itself a signal when the second prompt of level 2 is finished.
STOPPED = """
import contextlib, signal, sys
from onboard.cli import main, validate
class Progress:
    @contextlib.contextmanager
    def track(self):
        def say(what, done, total):
            if what.startswith("tokens: ") and done == 2:
                signal.raise_signal(int(sys.argv[1]))
        yield say
validate.Progress = Progress
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
sys.exit(main.run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGINT, Exit.INTERRUPTED),
        pytest.param(signal.SIGTERM, Exit.TERMINATED, marks=pytest.mark.slow),
    ],
)
def test_what_was_finished_before_a_signal_is_reported(sent, code, folder, tmp_path):
    report = tmp_path / "report"
    arguments = ["validate", folder, "--level", "3", "--level", "2", "--report", report]
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(sent.value), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VLLM_NEURON_CPU_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code and done.stdout == "" and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert sorted(path.name for path in report.iterdir()) == ["report.html", "report.json", "report.md"]
    found = Report.from_json(json.loads((report / "report.json").read_text()))
    assert found.partial and found.level(3).passed and found.verdict == "not run: level 2, interrupted"
    assert [prompt.passed for prompt in found.level(2).prompts] == [True, True]
    assert "interrupted" in (report / "report.html").read_text()


@pytest.mark.slow
def test_two_ranks_are_said(folder):
    child = process(folder, "--level", "2", "--tp", "2", "--format", "json")
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, out[-3000:] + err[-3000:]
    found = Report.from_json(json.loads(out))
    assert "TP 2" in found.target and "TP 2" in found.level(2).coverage
    assert not any("TP" in label for label in found.level(2).not_covered)


def refused(capsys, *arguments: str | Path) -> tuple[int, str]:
    code = run(["validate", *map(str, arguments)])
    return code, capsys.readouterr().err


def test_a_checkpoint_that_is_none(capsys, tmp_path, folder):
    code, text = refused(capsys, tmp_path / "nowhere")
    assert code == Exit.BAD_INPUT and "checkpoint folder" in text
    code, text = refused(capsys, "meta-llama/Llama-3.1-8B")
    assert code == Exit.BAD_INPUT and "Save or download" in text
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    code, text = refused(capsys, tmp_path)
    assert code == Exit.BAD_INPUT and "safetensors" in text


def test_code_of_a_package_that_stops_is_named_in_a_report(capsys, tmp_path):
    tiny = MODELS["llama"]
    tiny.save(tmp_path / "tiny")
    save_tokenizer(tmp_path / "tiny")
    last = "return x_TH + self.mlp(self.mlp_norm(x_TH))"
    package = write_package(tmp_path / "p", "llama3", ("model.py", last, "return x_TH + self.mlp(x_TH[:, 1:])"))
    report = tmp_path / "report"
    capsys.readouterr()
    code, text = refused(capsys, tmp_path / "tiny", "--package", package, "--level", "3", "--report", report)
    assert code == Exit.FAILED and "Traceback" not in text
    found = Report.from_json(json.loads((report / "report.json").read_text()))
    lines = next(package.rglob("model.py")).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "x_TH[:, 1:]" in line)
    assert found.partial and found.verdict.startswith("fail: level 3, stopped by RuntimeError: ")
    assert found.verdict.endswith(f"(model.py, line {number})")


def test_a_stale_report_does_not_outlive_a_run_that_is_refused(capsys, tmp_path, folder):
    (tmp_path / "empty.txt").write_text("\n")
    for name in ("report.html", "report.json", "report.md", "mine.md"):
        (tmp_path / name).write_text("pass")
    arguments = (folder, "--report", tmp_path, "--prompts", tmp_path / "empty.txt")
    assert refused(capsys, *arguments, "--level", "3")[0] == Exit.USAGE and (tmp_path / "report.json").exists()
    assert refused(capsys, *arguments)[0] == Exit.BAD_INPUT
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["empty.txt", "mine.md"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--prompts", "empty.txt"], Exit.BAD_INPUT, "at least one prompt"),
        (["--prompts", "long.txt", "--max-length", "64"], Exit.BAD_INPUT, "at most 64"),
        (["--prompts", "alien.jsonl"], Exit.BAD_INPUT, "got 320, expected ids below 320"),
        (["--tasks", ","], Exit.USAGE, "names no task"),
        (["--thresholds", "limits.toml"], Exit.BAD_INPUT, "min_score"),
        (["--thresholds", "none.toml"], Exit.BAD_INPUT, "can be read"),
        (["--package", "nowhere"], Exit.BAD_INPUT, "PACKAGE"),
        (["--report", "empty.txt"], Exit.BAD_INPUT, "--report"),
        (["--output", "no/such/folder/x.md"], Exit.BAD_INPUT, "--output"),
        (["--output", "."], Exit.BAD_INPUT, "Is a directory"),
        (["--level", "3", "--server", "http://127.0.0.1:9"], Exit.USAGE, "does not show its modules"),
        (["--level", "3", "--chunk", "64"], Exit.USAGE, "an engine in this process"),
        (["--server", "http://127.0.0.1:9", "--chunk", "64"], Exit.USAGE, "an engine in this process"),
        (["--server", "http://127.0.0.1:9", "--tp", "2"], Exit.USAGE, "an engine in this process"),
        (["--level", "3", "--tp", "2"], Exit.USAGE, "an engine in this process"),
        (["--tp", "0"], Exit.USAGE, "--tp"),
        (["--level", "3", "--tasks", "plain_facts"], Exit.USAGE, "needs level 1"),
        (["--level", "1", "--prompts", "long.txt"], Exit.USAGE, "needs level 2"),
        (["--level", "2", "--reference", "bf16"], Exit.USAGE, "needs level 1"),
        (["--server", "http://127.0.0.1:9", "--dtype", "float32"], Exit.USAGE, "started with"),
        (["--level", "4"], Exit.USAGE, "'4'"),
        (["--server", "127.0.0.1"], Exit.BAD_INPUT, "a URL"),
        (["--server", "http://127.0.0.1:9"], Exit.BAD_INPUT, "http://127.0.0.1:9 ([Errno 111] Connection refused)"),
        (["--server", "http://127.0.0.1:9"], Exit.BAD_INPUT, "Start the server"),
    ],
)
def test_refusals_come_early(arguments, code, message, capsys, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n")
    Path("long.txt").write_text("the quick brown fox " * 40)
    Path("alien.jsonl").write_text('{"ids": [1, 320]}\n')
    Path("limits.toml").write_text("[tasks.plain_facts]\nmin_scores = 0.5\n")
    found, text = refused(capsys, folder, *arguments)
    assert found == code and message in text and "Traceback" not in text


def test_a_real_server_and_one_that_is_killed_half_way(folder, tmp_path, monkeypatch):
    """One process of vLLM, which serves this module's model through the plugin."""
    from onboard.checks.validate import Request, validate
    from tests.vllm_neuron.vllm.test_server import Server

    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    server = Server(folder, tmp_path / "log.txt", "--max-model-len", "400", "--dtype", "bfloat16")
    request = Request(str(folder), levels=(2, 1), server=f"http://127.0.0.1:{server.port}", limit=4, max_length=330)
    try:
        server.wait_until_ready()
        report = validate(request, lambda what, done, total: None)
        assert report.passed, [level.verdict for level in report.levels]
        two = report.level(2)
        assert all(prompt.rows and "log-probabilities" in prompt.verdict for prompt in two.prompts)
        assert {row.phase for prompt in two.prompts for row in prompt.rows} == {"prefill", "decode"}

        def kill(what: str, done: int, total: int) -> None:
            if what.startswith("tokens: ") and done == 2:
                server.kill()

        cut = validate(request, kill)
        prompts = cut.level(2).prompts
        assert [prompt.partial for prompt in prompts[:3]] == [False, False, True] and prompts[1].passed
        assert cut.partial and cut.outcome == "not run" and cut.level(1).tasks[0].items == 0
        assert "the server ended" in " ".join(prompts[2].notes)
    finally:
        server.kill()
