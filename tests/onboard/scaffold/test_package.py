"""Writing a package: whole or not at all, nobody else's files, nothing of a config as code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onboard.errors import RunError
from onboard.scaffold import files, new, package, record, templating
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.origin import label, read, without_paths
from onboard.scaffold.update import update
from tests.onboard.scaffold import fake
from vllm_neuron.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
EVIL = 'silu"); import os #'


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def config(folder: Path, **values: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    raw = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(raw | values))
    return folder


def test_what_is_written(make):
    made = make("my-model")
    assert set(made.files) == {
        ".copier-answers.yml",
        ".gitignore",
        "README.md",
        "onboard.json",
        "pyproject.toml",
        "src/my_model/__init__.py",
        "src/my_model/config.py",
        "src/my_model/factory.py",
        "src/my_model/model.py",
        "tests/test_my_model.py",
    }
    project = tomllib.loads((made.folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "my-model"
    assert project["entry-points"] == {
        "vllm_neuron.models": {"LlamaForCausalLM": "my_model.factory:MyModelForCausalLM"},
        "vllm.general_plugins": {"my_model": "my_model:register"},
    }
    manifest = json.loads((made.folder / "onboard.json").read_text())
    assert list(manifest) == ["model", "model_type", "architecture", "given", "open", "onboard_version"]
    assert manifest["given"]["hidden_size"] == 4096
    assert "Not proved yet" in (made.folder / "README.md").read_text()


def test_no_variable_of_a_template_is_left(make):
    for name, data in content(make().folder).items():
        assert b"{{" not in data and b"{%" not in data, name


def test_rendered_files_are_clean_under_ruff(make, renderer):
    renderer(fake.model_code_with_open)
    folder = make().folder
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)})  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_an_open_feature_leaves_a_row_and_a_test(make, renderer):
    odd = OpenFeature('a "quoted" | feature\n', "Gemma3nTextAltUp", 'x"""y.py', "<b>")
    twice = OpenFeature("altup", "Other")

    def code(*arguments: object) -> ModelCode:
        made = fake.model_code_with_open(*arguments)
        return ModelCode(**{**vars(made), "open": (fake.OPEN, odd, twice)})

    renderer(code)
    folder = make().folder
    test = (folder / "tests/test_mymodel.py").read_text()
    compile(test, "test", "exec")
    for name in ("test_open_altup", "test_open_a_quoted_feature", "test_open_altup_2"):
        assert f"def {name}(proof" in test
    readme = (folder / "README.md").read_text()
    assert "Gemma3nTextAltUp" in readme and "<b>" not in readme
    named = json.loads((folder / "onboard.json").read_text())["open"]
    assert [item["feature"] for item in named] == ["altup", odd.feature, "altup"]


def test_no_path_of_the_machine(make, tmp_path):
    home = config(tmp_path / "secret-home" / "tiny", _name_or_path=str(tmp_path / "secret-home"), extra={"dir": "/a/b"})
    made = make("mymodel", str(home))
    for name, data in content(made.folder).items():
        assert str(tmp_path).encode() not in data and b"secret-home" not in data and b"/a/b" not in data, name
        assert str(ROOT).encode() not in data, name
    assert json.loads((made.folder / "onboard.json").read_text())["model"] == "tiny"


def test_a_config_can_not_put_code_into_what_is_not_rendered_by_the_model(make, tmp_path):
    """Names in the config and of its folder end up in TOML, Markdown, JSON, YAML and docstrings."""
    odd = config(tmp_path / '""" {{ 7*7 }} <img src=x> `rm` "];', hidden_act=EVIL, _commit_hash='"""')
    folder = make("mymodel", str(odd)).folder
    tomllib.loads((folder / "pyproject.toml").read_text())
    for path in folder.glob("src/mymodel/*.py"):
        compile(path.read_text(), path.name, "exec")
        assert "import os" not in path.read_text()
    readme = (folder / "README.md").read_text()
    assert "<img" not in readme and "49" not in readme and "`rm`" not in readme
    assert json.loads((folder / "onboard.json").read_text())["given"]["hidden_act"] == EVIL


@pytest.mark.parametrize("name", ['X"]\n[evil]\na = "b', "../../evil", "X; import os"])
def test_an_architecture_can_not_leave_its_place(make, tmp_path, name):
    odd = config(tmp_path / "odd", architectures=[name])
    with pytest.raises(ConfigError, match="architectures"):
        make("mymodel", str(odd))
    assert not (tmp_path / "mymodel").exists()


def test_labels():
    assert label("google/gemma-4-31B-it") == "google/gemma-4-31B-it"
    assert label('a"b\n{{c}}`<d>') == "a_b_c_d_"
    assert label("\n") == "_"
    assert without_paths({"a": "/x", "b": ["/y", "c:\\d", "bf16"], "c": {"d": "~/e", "f": None}}) == {
        "b": ["bf16"], "c": {"f": None}}  # fmt: skip


def test_I1_an_existing_folder_is_refused_before_anything_is_read(make, tmp_path):
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--output") as error:
        make("mymodel", "no-such/model")
    assert "not there yet" in str(error.value)
    assert content(tmp_path) == {"mymodel/notes.txt": b"mine"}


def test_I1_a_file_or_a_link_of_that_name_is_refused_even_with_force(make, tmp_path):
    (tmp_path / "mymodel").write_text("mine")
    with pytest.raises(ConfigError, match="a folder, or nothing"):
        make("mymodel", force=True)
    (tmp_path / "target").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="a folder, or nothing"):
        make("linked", force=True)
    assert content(tmp_path) == {"mymodel": b"mine"}


def test_an_empty_folder_is_fine(make, tmp_path):
    (tmp_path / "mymodel").mkdir()
    assert make().files


def test_the_current_folder_can_be_the_package(make, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = new.make("mymodel", "meta-llama/Llama-3.1-8B", Path())
    assert Path("src/mymodel/model.py").is_file()
    assert sorted(made.files) == sorted(set(content(Path())) - {record.FILE})
    Path(".gitignore").unlink()
    assert update(Path()).changes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_the_parent_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="a folder that is there"):
        package.refuse_existing(tmp_path / "no-such-folder" / "mymodel", force=True)


def test_I1_force_beside_a_users_files(make, tmp_path):
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "mymodel" / "notes.txt").write_text("mine")
    made = make(force=True)
    assert (made.folder / "notes.txt").read_text() == "mine"
    assert (made.folder / "src/mymodel/model.py").is_file()


def test_I1_force_never_takes_a_file_that_it_did_not_write(make, tmp_path):
    (tmp_path / "mymodel" / "src" / "mymodel").mkdir(parents=True)
    (tmp_path / "mymodel" / "src" / "mymodel" / "model.py").write_text("mine")
    with pytest.raises(ConfigError, match=r"src/mymodel/model\.py"):
        make(force=True)
    assert content(tmp_path) == {"mymodel/src/mymodel/model.py": b"mine"}


def test_force_writes_again_what_an_earlier_run_wrote(make, renderer):
    folder = make().folder
    (folder / "src/mymodel/model.py").write_text("broken")
    (folder / "src/mymodel/extra.py").write_text("mine")
    before = content(folder)
    renderer(fake.model_code_with_open)
    make(force=True)
    after = content(folder)
    assert b"altup" in after["src/mymodel/model.py"]
    assert after["src/mymodel/extra.py"] == b"mine"
    assert set(after) == set(before)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("stop", [0, 3, 14, 18])
def test_I1_a_stop_half_way_changes_nothing(make, monkeypatch, renderer, tmp_path, error, stop):
    make()
    (tmp_path / "mymodel" / "src" / "mymodel" / "notes.txt").write_text("mine")
    before = content(tmp_path)
    renderer(fake.model_code_with_open)
    real, calls = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == stop + 1:
            raise error
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(type(error)):
        make(force=True)
    assert len(calls) > stop
    assert content(tmp_path) == before


@pytest.mark.parametrize("error", [RunError("x", 1, "y"), KeyboardInterrupt()])
def test_I1_a_stop_while_rendering_leaves_nothing(make, monkeypatch, tmp_path, error):
    def fail(folder: Path) -> None:
        assert list(folder.iterdir())
        raise error

    monkeypatch.setattr(templating, "_lay_out", fail)
    with pytest.raises(type(error)):
        make()
    assert list(tmp_path.iterdir()) == []


def test_I1_a_link_on_the_way_is_not_followed(make, tmp_path):
    folder = make().folder
    outside = tmp_path / "outside"
    (folder / "src/mymodel").rename(outside)
    (folder / "src/mymodel").symlink_to(outside)
    before = content(outside)
    with pytest.raises(ConfigError, match="a plain folder"):
        make(force=True)
    assert content(outside) == before


def test_code_that_is_not_python_is_a_named_error(make, renderer, tmp_path):
    def broken(*arguments: object) -> ModelCode:
        return ModelCode(**{**vars(fake.model_code(*arguments)), "model_py": "def f(:\n"})

    renderer(broken)
    with pytest.raises(RunError, match="rendered code"):
        make()
    assert list(tmp_path.iterdir()) == []


def test_exchange_makes_and_drops_folders(tmp_path):
    staged, target, spare = (tmp_path / name for name in ("staged", "target", "spare"))
    for path, text in ((staged / "a/new", "1"), (target / "b/old", "2"), (spare / "x", "")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    files.exchange(staged, target, ["a/new"], ["b/old"], spare)
    assert content(target) == {"a/new": b"1"}
    assert not (target / "b").exists()


@pytest.mark.parametrize(("source", "kind", "given"), [("qwen3", "type", False), ("Qwen/Qwen3-0.6B", "catalog", True)])
def test_sources(source, kind, given):
    found = read(source)
    assert found.kind == kind
    assert found.facts.model_type == "qwen3"
    assert found.facts.architectures == ("Qwen3ForCausalLM",)
    assert (found.given is not None) is given


@pytest.mark.parametrize("source", ["qwen33", "os", "../qwen3", "Qwen/No-Such", ""])
def test_a_source_that_is_not_there(source):
    with pytest.raises(ConfigError):
        read(source)
