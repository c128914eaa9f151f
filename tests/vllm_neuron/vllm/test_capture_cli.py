"""`onboard capture` and `onboard replay`, on tiny models, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run
from tests.vllm_neuron.vllm.conftest import prompts_of
from vllm_neuron.snapshot.index import CaptureFolder

# What the commands set for their children.
SET = ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "OMP_WAIT_POLICY", "VLLM_LOGGING_STREAM", "VLLM_LOGGING_LEVEL")


@pytest.fixture(autouse=True)
def environment(cpu_mode: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are put back after each test."""
    for name in SET:
        monkeypatch.setenv(name, "1" if "VLLM_LOGGING" not in name else "")
        monkeypatch.delenv(name)


@pytest.fixture
def llama(checkpoint: Any) -> str:
    return str(checkpoint("llama").folder)


def test_capture_and_show(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    ids = prompts_of(30, 5)
    prompts.write_text(json.dumps(ids[0]) + "\n" + json.dumps({"prompt_token_ids": ids[1]}) + "\n")
    to = tmp_path / "out"
    words = f"capture {llama} --modules layers.* --modules head --to {to} --prompts {prompts} --tokens 3 --chunk 16"
    assert run([*words.split(), "--steps", "1-2", "--dtype", "float32"]) == Exit.OK
    text = capsys.readouterr().out
    assert "CPU mode" in text and "layers.3" in text and "F32 [T, 64]" in text
    assert [step.label.step for step in CaptureFolder.open(to).steps] == [1, 2]
    assert run(["capture", str(to), "--format", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown["modules"] == ["layers.0", "layers.1", "layers.2", "layers.3", "head"]
    prefill, extend = shown["steps"]
    assert prefill["phase"] == "prefill" and prefill["token_ids"] == ids[1][:2]
    assert extend["phase"] == "extend" and extend["token_ids"] == ids[0][16:]
    request = extend["calls"][0]["rows"][0]
    assert request[1:] == [0, 14, 16] and extend["calls"][0]["tensors"]["out.0"]["shape"] == [14, 64]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--modules layers.0 --to OUT", Exit.USAGE, "either --prompt or --prompts"),
        ("--modules layers.0 --prompt hi", Exit.USAGE, "--to is needed"),
        ("--modules layers.0 --to OUT --prompt hi --steps 3-", Exit.BAD_INPUT, "0-3,7"),
        ("--modules layers.0 --to OUT --prompt hi --steps 3-1", Exit.BAD_INPUT, "tensor_capture.steps"),
        ("--modules layer.0 --to OUT --prompts IDS", Exit.BAD_INPUT, "Did you mean 'layers.0'"),
        ("--modules layers.0 --to OUT --prompts EMPTY", Exit.BAD_INPUT, "at least one prompt"),
        ("--modules layers.0 --to OUT --prompts BAD", Exit.BAD_INPUT, "line 2"),
        ("--modules layers.0 --to OUT --prompts LONG", Exit.BAD_INPUT, "at most 512 tokens"),
        ("--modules layers.0 --to FULL --prompts IDS", Exit.BAD_INPUT, "a new or an empty folder"),
        ("", Exit.BAD_INPUT, "Name the dir of tensor_capture"),
    ],
)
def test_what_can_not_be_captured(
    llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: Exit, message: str
) -> None:
    (tmp_path / "IDS.jsonl").write_text("[5, 6, 7]\n")
    (tmp_path / "EMPTY.txt").write_text("\n  \n")
    (tmp_path / "BAD.jsonl").write_text('[5]\n{"text": 3}\n')
    (tmp_path / "LONG.jsonl").write_text(json.dumps([5] * 510))
    (tmp_path / "FULL" / "rank0").mkdir(parents=True)
    (tmp_path / "FULL" / "rank0" / "notes").touch()
    for name in ("IDS.jsonl", "EMPTY.txt", "BAD.jsonl", "LONG.jsonl", "FULL", "OUT"):
        words = words.replace(Path(name).stem, str(tmp_path / name))
    assert run(["capture", llama, *words.split()]) == code
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def snapshot(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One decode step."""
    from vllm import SamplingParams

    folder = tmp_path_factory.mktemp("snapshot") / "s"
    config = {"neuron_config": {"input_snapshot": {"dir": str(folder), "steps": [2]}}}
    llm = engine("llama", additional_config=config)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompts_of(9)[0]}], params, use_tqdm=False)
    return folder / "step-000002"


def test_replay_passes_bit_by_bit(snapshot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(snapshot)]) == Exit.OK
    text = capsys.readouterr().out
    assert "step 2, decode, 1 tokens" in text and "verdict: pass: 2 of 2 tensors" in text
    assert run(["replay", str(snapshot), "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["bitwise"] and [each["name"] for each in found["tensors"]] == ["hidden", "logits"]


def test_replay_with_an_edited_package_fails(
    snapshot: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The package as a folder on the side, whose MLP is half as strong."""
    source = tmp_path / "edited" / "src" / "edited_llama"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    (source / "factory.py").write_text(
        "from reference_models.llama3.model import Llama\n\n\n"
        "class Edited(Llama):\n"
        "    def forward(self, step):\n"
        "        return super().forward(step) * 1.25\n"
    )
    assert run(["replay", str(snapshot), "--package", str(tmp_path / "edited")]) == Exit.FAILED
    text = capsys.readouterr().out
    assert "differs by up to" in text and "verdict: fail: 0 of 2 tensors" in text


def test_replay_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(tmp_path / "no")]) == Exit.BAD_INPUT
    assert "a folder that can be read" in capsys.readouterr().err
