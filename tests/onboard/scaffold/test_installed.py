"""A generated package once it is installed: B1, B3 and B5 of the public reports."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPAWNED = """
import multiprocessing

def look(pipe):
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    from vllm import ModelRegistry
    from vllm_neuron.model.registry import find
    pipe.send(("AltLlamaForCausalLM" in ModelRegistry.get_supported_archs(), find("AltLlamaForCausalLM").value))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=look, args=(there,))
    child.start()
    there.close()
    print(here.recv())
    child.join()
"""


def checkpoint(folder: Path, **values: object) -> Path:
    folder.mkdir()
    raw = {"model_type": "llama", "architectures": ["AltLlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw | values))
    return folder


def pip_install(folder: Path, site: Path) -> Path:
    """What ``pip install folder`` leaves behind, in a folder of its own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
               "--disable-pip-version-check", "--target", str(site), str(folder)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return site


def run(*command: str, site: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT))), "VLLM_NEURON_CPU_MODE": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=variables | environment)


@pytest.fixture
def installed(make, tmp_path: Path) -> Path:
    return pip_install(make("alt-llama", str(checkpoint(tmp_path / "tiny"))).folder, tmp_path / "site")


@pytest.mark.parametrize("plugins", [None, "neuron,alt_llama"])
def test_B1_a_spawned_child_that_only_loads_plugins_knows_the_architecture(installed, tmp_path, plugins):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWNED)
    done = run(str(script), site=installed, **({} if plugins is None else {"VLLM_PLUGINS": plugins}))
    assert done.stdout.splitlines()[-1:] == [f"{(True, 'alt_llama.factory:AltLlamaForCausalLM')}"], done.stderr


def test_B1_on_another_platform_nothing_is_registered(installed, tmp_path):
    (tmp_path / "spawn.py").write_text(SPAWNED)
    done = run(str(tmp_path / "spawn.py"), site=installed, VLLM_NEURON_CPU_MODE="0")
    assert done.stdout.splitlines()[-1:] == [f"{(False, 'alt_llama.factory:AltLlamaForCausalLM')}"], done.stderr


def test_B3_a_broken_import_is_shown_with_its_exception_and_file(installed, tmp_path):
    model = installed / "alt_llama" / "model.py"
    model.write_text(model.read_text().replace("from torch import", "import no_such_module\nfrom torch import", 1))
    line = model.read_text().splitlines().index("import no_such_module") + 1
    done = run("-m", "onboard.cli.main", "doctor", "--format", "json", site=installed)
    assert done.returncode == 5
    document = json.loads(done.stdout)
    found = next(f for f in document["findings"] if f["check"] == "model AltLlamaForCausalLM")
    assert found["status"] == "error"
    assert "ModuleNotFoundError: No module named 'no_such_module'" in found["message"]
    assert f"{model}:{line}" in found["message"]
    assert document["mode_words"].startswith("CPU mode")


def test_B5_a_model_type_that_transformers_has_imports_twice(make, tmp_path, monkeypatch):
    raw = checkpoint(tmp_path / "tiny", model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=16)
    folder = make("my-qwen", str(raw)).folder
    monkeypatch.syspath_prepend(str(folder / "src"))
    for _ in range(2):
        for name in [name for name in sys.modules if name.split(".")[0] == "my_qwen"]:
            monkeypatch.delitem(sys.modules, name)
        factory = importlib.import_module("my_qwen.factory")
        assert factory.MyQwenForCausalLM.from_configs
        importlib.reload(factory)
    from transformers import CONFIG_MAPPING

    assert CONFIG_MAPPING["qwen3"].__module__.startswith("transformers.")
