"""The zoo's list, its runner with children that stand in for proofs, and its views."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from onboard.cli.exits import Exit
from onboard.cli.zoo import exit_code
from onboard.zoo.decoders import EXCLUDED, chosen, decoders
from onboard.zoo.one import versions
from onboard.zoo.row import Row, document, markdown, summary
from onboard.zoo.runner import kept, run_all
from vllm_neuron.errors import ConfigError

MODELS = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "bloom": "BloomForCausalLM"}
CHILD = textwrap.dedent("""
    import json, pathlib, sys, time
    name, result, versions = sys.argv[1:4]
    if name == "gpt2":
        sys.exit("no such luck")
    if name == "bloom":
        time.sleep(60)
    row = {"model_type": name, "architecture": "X", "verdict": "proved", "worst": 1e-7, "versions": versions}
    pathlib.Path(result).write_text(json.dumps(row))
""")


def line(model_type: str, folder: Path, result: Path) -> Sequence[str]:
    return [sys.executable, "-c", CHILD, model_type, str(result), versions()]


def test_the_list_is_the_130_decoders_of_transformers_5_19() -> None:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    left_out = [name for names in EXCLUDED.values() for name in names.split()]
    assert len(left_out) == len(set(left_out)) == 48 and set(left_out) <= set(NAMES)
    assert transformers.__version__.startswith("5.19") and len(decoders()) == 130


def test_an_unknown_or_excluded_model_type_is_refused_by_name() -> None:
    assert list(chosen(["gpt2", "llama"])) == ["gpt2", "llama"]
    with pytest.raises(ConfigError, match="llama"):
        chosen(["lama"])
    with pytest.raises(ConfigError, match="encoder-decoder"):
        chosen(["whisper"])


def test_children_that_answer_crash_or_hang_each_get_a_row(tmp_path: Path) -> None:
    rows = run_all(MODELS, tmp_path, jobs=3, line=line, timeout=3.0)
    assert [row.verdict for row in rows] == ["proved", "crashed", "timeout"]
    assert "no such luck" in rows[1].message and "3 s" in rows[2].message


def test_resume_runs_only_what_has_no_result_of_these_versions(tmp_path: Path) -> None:
    old = Row("bloom", "BloomForCausalLM", "open", versions="transformers 4.0, onboard 0.0")
    (tmp_path / "bloom.json").write_text(json.dumps(old.to_json()))
    done = Row("llama", "LlamaForCausalLM", "open", open=("altup",), versions=versions())
    (tmp_path / "llama.json").write_text(json.dumps(done.to_json()))
    started = []

    def watched(model_type: str, folder: Path, result: Path) -> Sequence[str]:
        started.append(model_type)
        return [sys.executable, "-c", "raise SystemExit(3)"]

    rows = run_all({k: MODELS[k] for k in ("llama", "bloom")}, tmp_path, resume=True, line=watched)
    assert started == ["bloom"] and rows[0] == done and rows[1].verdict == "crashed"
    (tmp_path / "llama.json").write_text('{"half')
    assert kept(tmp_path, "llama") is None


def test_an_interrupt_ends_the_children(tmp_path: Path) -> None:
    def pid(model_type: str, folder: Path, result: Path) -> Sequence[str]:
        code = f"import os,time; open({str(tmp_path / 'pid')!r},'w').write(str(os.getpid())); time.sleep(60)"
        return [sys.executable, "-c", code]

    def interrupt(label: str, done: int, total: int) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all({"llama": "X"}, tmp_path, line=pid, progress=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_ctrl_c_of_the_command_is_130_and_leaves_no_child(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onboard.cli.main", "zoo", "--only", "llama", "--folder", str(tmp_path / "z")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 60
    while not (tmp_path / "z" / "llama.log").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED and out == b"" and err.strip() == b"interrupted"


def test_views_and_exit_code() -> None:
    proved = Row("llama", "LlamaForCausalLM", "proved", worst=1.23e-6, found=("scale",), versions="transformers 5")
    opened = Row("gemma3n_text", "X", "open", open=("altup", "laurel"))
    failed = Row("gpt2", "Y", "failed", worst=0.5, message="base: a|b")
    assert exit_code([proved]) is Exit.OK and exit_code([proved, opened]) is Exit.OPEN
    assert exit_code([proved, opened, failed]) is Exit.FAILED
    assert exit_code([Row("llama", "L", "proved", missed=("scale",))]) is Exit.FAILED
    assert summary([proved, opened, failed]) == "1 of 3 proved; 1 open, 1 failed; 1 of 1 flips found"
    page = markdown([proved, opened, failed])
    assert "**1 of 3 proved" in page and "| `gemma3n_text` | X | open | - | altup, laurel |" in page
    assert "a\\|b" in page and document([proved])["counts"] == {"proved": 1}
    assert Row.from_json(json.loads(json.dumps(opened.to_json()))) == opened
    with pytest.raises(ConfigError):
        Row.from_json({**opened.to_json(), "verdct": "open"})
