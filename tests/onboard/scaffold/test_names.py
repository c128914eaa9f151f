"""Names of packages: I3 of the public reports, and what else a name can run into."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from onboard.scaffold import names as module
from onboard.scaffold.names import architecture, claims, names
from vllm_neuron.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "package", "distribution", "class_name"),
    [
        ("my-model", "my_model", "my-model", "MyModelForCausalLM"),
        ("MyModel", "mymodel", "mymodel", "MyModelForCausalLM"),
        ("GPT4o", "gpt4o", "gpt4o", "GPT4oForCausalLM"),
        ("mymodel", "mymodel", "mymodel", "MymodelForCausalLM"),
        ("my_model-2.5", "my_model_2_5", "my-model-2-5", "MyModel25ForCausalLM"),
        ("llama", "llama", "llama", "LlamaForCausalLM"),
    ],
)
def test_I3_valid_names(typed, package, distribution, class_name):
    found = names(typed)
    assert (found.package, found.distribution, found.class_name) == (package, distribution, class_name)
    assert found.package.isidentifier() and found.class_name.isidentifier()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("3dmodel", "Try 'm3dmodel'"),
        ("class", "Try 'class_model'"),
        ("Class", "Try 'class_model'"),
        ("match", "Try 'match_model'"),
        ("print", "Try 'print_model'"),
        ("", "onboard new mymodel"),
        ("  ", "onboard new mymodel"),
        ("../evil", "without parts of a path"),
        ("a/b", "without parts of a path"),
        ("a\\b", "without parts of a path"),
        ("/etc", "without parts of a path"),
        ("..", "without parts of a path"),
        (".hidden", "without parts of a path"),
        ("~you", "without parts of a path"),
        ("a\x00b", "without parts of a path"),
        ("modelé", "Try 'modele'"),
        ("模型", "Try 'mymodel'"),
        ("a--b", "Try 'a_b'"),
        ("a b", "Try 'a_b'"),
        ("-rf", "Try 'rf'"),
        ("_private", "Try 'private'"),
        ("my-model-", "Try 'my_model'"),
        ("x" * 65, "at most 64 characters"),
        ("{{package}}", "Try 'package'"),
        ("tests", "Try 'tests_model'"),
    ],
)
def test_I3_refused_names(typed, said):
    with pytest.raises(ConfigError, match="NAME") as error:
        names(typed)
    assert said in str(error.value)


def test_I3_a_suggestion_is_itself_a_valid_name():
    for typed in ("3dmodel", "class", "modelé", "a--b", "-rf", "torch", "json"):
        with pytest.raises(ConfigError) as error:
            names(typed)
        names(error.value.action.split("'")[1])


@pytest.mark.parametrize("typed", ["torch", "vllm-neuron", "onboard", "json", "Typing"])
def test_I3_a_module_that_exists_is_not_shadowed(typed):
    with pytest.raises(ConfigError, match=r"no (installed )?module"):
        names(typed)


def test_I3_the_name_of_a_public_family_is_warned_about():
    assert "pip install llama" in names("llama").warnings[0]
    assert names("my-model").warnings == ()


def test_a_package_may_be_installed_from_the_folder_it_is_written_to(tmp_path, monkeypatch):
    source = tmp_path / "here" / "src" / "known_model"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(source.parent))
    assert names("known-model", tmp_path / "here").package == "known_model"
    with pytest.raises(ConfigError, match="can be imported here"):
        names("known-model", tmp_path / "there")


def test_a_plain_folder_on_the_path_is_no_module(tmp_path, monkeypatch):
    (tmp_path / "plain_model").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names("plain-model").package == "plain_model"


@pytest.mark.parametrize("name", ["", 'x"\nevil = "y', "a.b", "Model:x", "class", "Modellé", "a b"])
def test_an_architecture_that_is_no_class_name_is_refused(name):
    with pytest.raises(ConfigError, match="architectures"):
        architecture(name)


class Distribution:
    def __init__(self, name: str) -> None:
        self.name = name


def registered_by(monkeypatch: pytest.MonkeyPatch, *owners: str) -> None:
    points = [EntryPoint("XForCausalLM", f"{o}:X", module.MODELS)._for(Distribution(o)) for o in owners]
    monkeypatch.setattr(module, "entry_points", lambda group: points)


def test_an_architecture_of_somebody_else_is_warned_about(monkeypatch):
    registered_by(monkeypatch, "Rival_Models", "neuron-onboard")
    (said,) = claims("XForCausalLM", "mine")
    assert "rival-models" in said and "VLLM_NEURON_MODEL_PACKAGE=mine" in said


def test_a_reference_model_gives_way(monkeypatch):
    registered_by(monkeypatch, "neuron-onboard")
    assert "served instead" in claims("XForCausalLM", "mine")[0]


def test_ones_own_earlier_installation_is_no_rival(monkeypatch):
    registered_by(monkeypatch, "My_Model")
    assert claims("XForCausalLM", "my-model") == ()
    assert claims("YForCausalLM", "my-model") == ()


@pytest.mark.parametrize("typed", ["my-model", "MyModel", "GPT4o", "llama"])
def test_I3_output_compiles(make, typed):
    folder: Path = make(typed).folder
    done = subprocess.run([sys.executable, "-m", "compileall", "-q", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"class {names(typed).class_name}:" in next(folder.glob("src/*/factory.py")).read_text()


@pytest.mark.parametrize("typed", ["attention", "Rotary", "step"])
def test_a_class_never_hides_an_import(make, typed, tmp_path):
    with pytest.raises(ConfigError, match=f"Try '{typed.lower()}_model'"):
        make(typed)
    assert list(tmp_path.iterdir()) == []
