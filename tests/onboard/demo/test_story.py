"""The whole demonstration against a stand-in server: a real diff, package, proof and installation on real weights.

The stand-in asks the real registry who serves, so that a package which a child process does not find fails here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run
from onboard.demo import server as server_module
from onboard.demo.installed import environment, install
from onboard.demo.story import served_by
from onboard.errors import RunError
from vllm_neuron import envs

FIND = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm_neuron.models')])"


@pytest.fixture
def models(tmp_path: Path, smollm2: Path, gemma3_270m: Path) -> Path:
    """A folder of its own with both demo models; the weights are links."""
    for folder in (smollm2, gemma3_270m):
        shutil.copytree(folder, tmp_path / "models" / folder.name, copy_function=lambda a, b: Path(b).symlink_to(a))
    return tmp_path / "models"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(server_module, "ENTRY", ("fake_serve",))
    monkeypatch.setattr("onboard.report.mode.neuron_devices", list)
    for name in ("VLLM_NEURON_CPU_MODE", "VLLM_NO_USAGE_STATS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_whole_story(fake, models, capfd):
    assert run(["demo", "--models", str(models), "--format", "json"]) == Exit.OK
    out, err = capfd.readouterr()
    story = json.loads(out)
    assert story["diff"]["b"]["architectures"] == ["Gemma3ForCausalLM"]
    assert story["package"]["architecture"] == "Gemma3ForCausalLM"
    assert story["proof"]["verdict"] == "proved"
    assert "real checkpoint, TP 4" in [check["name"].strip(": ") for check in story["proof"]["checks"]]
    assert story["served"]["served_by"] == "gemma3-port"
    assert story["served"]["text"] == "The answer is Paris."
    assert {p.name for p in models.iterdir()} == {"smollm2", "gemma3-270m", "gemma3-port", "gemma3-port-installed"}
    for line in ("1/6 real weights", "2/6 onboard diff", "Gemma3ForCausalLM is served by gemma3-port", "CPU mode"):
        assert line in err
    assert "\x1b" not in out + err
    assert not [p for p in entry_points(group="vllm_neuron.models") if p.value.startswith("gemma3_port")]


def package(folder: Path, pyproject: str = "") -> Path:
    (folder / "src" / "portx").mkdir(parents=True)
    (folder / "src" / "portx" / "__init__.py").write_text("")
    text = '[project]\nname = "portx"\nversion = "1"\n[project.entry-points."vllm_neuron.models"]\nX = "portx:X"\n'
    (folder / "pyproject.toml").write_text(pyproject or text)
    return folder


def test_a_child_finds_what_was_installed_and_the_sources_stay_clean(tmp_path):
    source, target = package(tmp_path / "portx"), tmp_path / "installed"
    before = sorted(source.rglob("*"))
    for _ in range(2):
        install(source, target)
    command = [sys.executable, "-c", FIND]
    changes = environment(target, "portx")
    found = subprocess.run(command, env=envs.child(changes), capture_output=True, text=True, check=True)
    assert "portx:X" in found.stdout
    assert sorted(source.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["installed", "portx"]


def test_a_package_that_does_not_build_leaves_the_former_one(tmp_path):
    target = tmp_path / "installed"
    install(package(tmp_path / "portx"), target)
    before = sorted(target.rglob("*"))
    with pytest.raises(RunError, match="pip install"):
        install(package(tmp_path / "broken", "[project]\nname = 3\n"), target)
    assert sorted(target.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "installed", "portx"]


@pytest.mark.parametrize("line", ["", "INFO Gemma3ForCausalLM is served by other, not by neuron-onboard"])
def test_another_package_than_the_generated_one_is_an_error(tmp_path, line):
    log = tmp_path / "server.log"
    log.write_text(line)
    with pytest.raises(RunError, match="expected gemma3-port"):
        served_by(log, "Gemma3ForCausalLM", "gemma3-port")
