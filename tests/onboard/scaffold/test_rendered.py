"""Packages from the real renderer: clean, quick, and never code of a config."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onboard.scaffold import new
from onboard.scaffold.update import update
from tests.onboard.scaffold.test_package import ROOT, config
from vllm_neuron.errors import NeuronError

CODE = '"); import os #'


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> new.Made:
    return new.make("my-model", "meta-llama/Llama-3.1-8B", tmp_path_factory.mktemp("real") / "my-model")


def test_classes_and_imports_have_the_packages_names(rendered):
    source = {path.name: path.read_text() for path in rendered.folder.glob("src/my_model/*.py")}
    for name, classes in {
        "config.py": {"MyModelConfig"},
        "model.py": {"MyModelLayer", "MyModel"},
        "factory.py": {"MyModelForCausalLM"},
    }.items():
        assert {n.name for n in ast.parse(source[name]).body if isinstance(n, ast.ClassDef)} == classes
    assert "from my_model.config import MyModelConfig" in source["model.py"]
    assert "from my_model.model import MyModel" in source["factory.py"]
    assert len(source["model.py"].splitlines()) <= 150


def test_rendered_code_is_clean(rendered):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=rendered.folder, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stdout


def test_the_same_facts_render_the_same_package(rendered):
    assert update(rendered.folder).changes == ()


def test_rendering_is_quick(rendered, tmp_path):
    facts, names = rendered.answers.origin.facts, rendered.answers.names
    begin = time.perf_counter()
    new.code_of(facts, names)
    code = time.perf_counter() - begin
    begin = time.perf_counter()
    update(rendered.folder, dry_run=True)
    assert time.perf_counter() - begin - code < 2.0


EVIL = {
    "activation": {"hidden_act": f"silu{CODE}"},
    "rope": {"rope_scaling": {"rope_type": f"linear{CODE}", "factor": 2.0}},
    "rope_key": {"rope_scaling": {"rope_type": "linear", "factor": 2.0, f"x{CODE}": 1}},
    "layer_types": {"layer_types": [f"full_attention{CODE}", "full_attention"]},
    "key": {f"evil{CODE}": True, "c.x": 1, "class": 2, "__import__": 3},
    "dtype": {"dtype": f"bfloat16{CODE}"},
    "tie": {"tie_word_embeddings": CODE},
    "token": {"bos_token_id": CODE, "pad_token_id": None},
    "version": {"transformers_version": f"5{CODE}", "auto_map": {"AutoConfig": f"x.y{CODE}"}},
    "quantization": {"quantization_config": {"quant_method": f"fp8{CODE}"}},
}


@pytest.mark.parametrize("name", EVIL)
def test_values_of_a_config_never_become_code(name, tmp_path):
    source = config(tmp_path / "evil", rms_norm_eps=1e-6, **EVIL[name])
    try:
        folder = new.make("mymodel", str(source), tmp_path / "mymodel").folder
    except NeuronError:
        assert [path.name for path in tmp_path.iterdir()] == ["evil"]
        return
    for path in [*folder.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Import) and node.names[0].name == "os"), path
    assert json.loads((folder / "onboard.json").read_text())["given"]["hidden_size"] == 64


def test_files_stay_in_the_package(tmp_path):
    source = config(tmp_path / "evil", model_type="llama", _name_or_path="../../x", architectures=["LlamaForCausalLM"])
    folder = new.make("mymodel", str(source), tmp_path / "mymodel").folder
    assert {path.name for path in tmp_path.iterdir()} == {"evil", "mymodel"}
    assert all(path.resolve().is_relative_to(folder.resolve()) for path in Path(folder).rglob("*"))
