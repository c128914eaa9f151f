"""The whole way, as the documentation tells it: new, install, verify, update, doctor, in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SITE = next(path for path in map(Path, sys.path) if path.name == "site-packages")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


def onboard(place: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NEURON_CPU_MODE": "1"}
    command = [python, "-m", "onboard.cli.main", *arguments]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def proved(place: Path) -> Path:
    done = onboard(place, "new", "mymodel", "--from", "Qwen/Qwen3-0.6B")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved" in done.stdout
    return place / "mymodel"


def test_new_proves_and_writes_the_evidence(proved: Path) -> None:
    readme = (proved / "README.md").read_text()
    assert "Not proved yet" not in readme
    assert "proved" in readme


def test_verify_again(place: Path, proved: Path) -> None:
    done = onboard(place, "verify", "mymodel", "--only", "blocks", "--format", "json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["verdict"] == "proved"


def test_update_keeps_the_evidence(place: Path, proved: Path) -> None:
    before = (proved / "README.md").read_bytes()
    done = onboard(place, "update", "mymodel")
    assert (done.returncode, done.stdout) == (0, "Up to date.\n")
    assert (proved / "README.md").read_bytes() == before


def test_its_own_tests_pass(proved: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(proved)]
    done = subprocess.run(command, cwd=proved, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_install_and_doctor(place: Path, proved: Path) -> None:
    """A fresh environment that sees this one's packages, as `pip install -e` would leave it."""
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    own = next((place / "venv").glob("lib/python*/site-packages"))
    (own / "outer.pth").write_text(f"{SITE}\n{ROOT}\n")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", "mymodel"]
    done = subprocess.run([python, *install], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checkpoint = place / "my-checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}))
    done = onboard(place, "doctor", str(checkpoint), "--format", "json", python=str(python))
    findings = {f["check"]: f for f in json.loads(done.stdout)["findings"]}
    assert findings["architecture"]["status"] == "ok"
    assert "served by mymodel" in findings["model Qwen3ForCausalLM"]["message"]
