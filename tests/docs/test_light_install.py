"""``pip install .`` alone: the command line works from an installed copy, with neither torch nor vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys
class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "vllm", "transformers", "numpy"):
            raise ImportError(f"{name} is not there in a light install")
sys.meta_path.insert(0, Heavy())
sys.argv = ["onboard", *sys.argv[1:]]
from onboard.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("light")
    source = tmp_path_factory.mktemp("source") / "tree"
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *arguments]
    environment = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(installed)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=installed)


def test_help_and_diff_and_inspect(installed: Path) -> None:
    assert run(installed, "--help").returncode == 0
    diff = run(installed, "diff", "meta-llama/Llama-3.1-8B", "google/gemma-4-31B-it", "--format", "json")
    assert diff.returncode == 0, diff.stderr
    assert json.loads(diff.stdout)["rows"]
    inspect = run(installed, "inspect", "Qwen/Qwen3-8B", "--format", "json")
    assert json.loads(inspect.stdout)["params_total"] == 8_190_735_360
    assert run(installed, "diff", "--schema").returncode == 0


def test_what_needs_the_rest_says_so(installed: Path) -> None:
    doctor = run(installed, "doctor")
    assert doctor.returncode == 5 and "vllm" in doctor.stdout.lower()
    assert "Traceback" not in doctor.stdout + doctor.stderr


def test_templates_are_installed_inside_the_package(installed: Path) -> None:
    shipped = installed / "onboard" / "templates"
    written = {p.relative_to(ROOT / "templates") for p in (ROOT / "templates").rglob("*") if p.is_file()}
    assert {p.relative_to(shipped) for p in shipped.rglob("*") if p.is_file()} == written
    assert not (installed / "templates").exists()
    code = "from onboard.scaffold.shipped import templates; print(templates())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(installed)}, cwd=installed)
    assert done.stdout.strip() == str(shipped)


def test_new_without_torch_says_what_is_missing(installed: Path) -> None:
    done = run(installed, "new", "mymodel", "--from", "Qwen/Qwen3-8B", "--no-verify")
    assert done.returncode == 3, done.stderr
    assert "neuron-onboard[cpu]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (installed / "mymodel").exists()


def test_kernels_without_torch_says_what_is_missing(installed: Path) -> None:
    done = run(installed, "kernels", "meta-llama/Llama-3.1-8B")
    assert done.returncode == 3, done.stderr
    assert "neuron-onboard[cpu]" in done.stderr and "ask its kernels" in done.stderr
    assert "Traceback" not in done.stderr
