"""A staged folder appears complete or not at all, whatever ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from onboard.demo.staging import staged

HOLD = """
import sys, time
from pathlib import Path
from onboard.demo.staging import staged
with staged(Path(sys.argv[1])) as stage:
    (stage / "half").write_text("half")
    print("up", flush=True)
    time.sleep(60)
"""


def test_appears_with_its_content(tmp_path):
    with staged(tmp_path / "a" / "model") as stage:
        (stage / "file").write_text("x")
        assert not (tmp_path / "a" / "model").exists()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["model"]
    assert (tmp_path / "a" / "model" / "file").read_text() == "x"


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="stop"), staged(tmp_path / "model") as stage:
        (stage / "file").write_text("x")
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_replaces_a_folder_only_at_the_end(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    with staged(target) as stage:
        (stage / "new").write_text("new")
        assert (target / "old").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in target.iterdir()] == ["new"]


def test_a_killed_run_leaves_no_target_and_the_next_run_tidies(tmp_path):
    target = tmp_path / "model"
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(target)], stdout=subprocess.PIPE)
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not target.exists()
    with staged(target) as stage:
        (stage / "whole").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in target.iterdir()] == ["whole"]


def test_a_run_that_is_alive_keeps_its_stage(tmp_path):
    target = tmp_path / "model"
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(target)], stdout=subprocess.PIPE)
    child.stdout.readline()
    with staged(target):
        pass
    assert len([p for p in tmp_path.iterdir() if p.name.endswith(".partial")]) == 1
    child.kill()
    child.wait()
