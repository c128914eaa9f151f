"""`onboard update`: a user's edits survive, conflicts are shown in place, and all files change together or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onboard.facts.api import ModelFacts
from onboard.scaffold import merge
from onboard.scaffold.code import ModelCode
from onboard.scaffold.merge import What, change
from onboard.scaffold.names import Names
from onboard.scaffold.record import FILE, Record
from onboard.scaffold.update import update
from tests.onboard.scaffold import fake
from tests.onboard.scaffold.test_package import config, content
from vllm_neuron.errors import ConfigError

MODEL = "src/mymodel/model.py"
EPS = "self.mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def rendering(old: str, new: str) -> Callable[[ModelFacts, Names], ModelCode]:
    """A renderer that has moved on."""

    def code(facts: ModelFacts, names: Names) -> ModelCode:
        made = fake.model_code(facts, names)
        assert old in made.model_py
        return replace(made, model_py=made.model_py.replace(old, new))

    return code


def what(updated: object) -> dict[str, What]:
    return {change.file: change.what for change in updated.changes}


def test_nothing_moved(make):
    folder = make().folder
    before = content(folder)
    done = update(folder)
    assert (done.changes, done.conflicts, done.written) == ((), (), False)
    assert content(folder) == before


def test_a_users_edits_alone_are_kept(make):
    folder = make().folder
    edit(folder / MODEL, EPS, EPS + "  # mine")
    (folder / "src/mymodel/extra.py").write_text("MINE = 1\n")
    before = content(folder)
    assert update(folder).changes == ()
    assert content(folder) == before


def test_a_moved_rendering_merges_with_a_users_edit(make, renderer):
    folder = make().folder
    edit(folder / MODEL, "The whole model; its frame", "My whole model; its frame")
    renderer(rendering(EPS, EPS.replace("eps=", "weight=True, eps=")))
    done = update(folder)
    assert what(done) == {MODEL: What.MERGED}
    text = (folder / MODEL).read_text()
    assert "My whole model" in text and "weight=True, eps=" in text
    assert "My whole model" not in Record.read(folder).files[MODEL]
    assert update(folder).changes == (), "the pristine copy has moved too"


def test_a_file_that_the_user_left_alone_is_replaced(make, renderer):
    folder = make().folder
    renderer(rendering(EPS, EPS + "  # new"))
    assert what(update(folder)) == {MODEL: What.UPDATED}
    assert (folder / MODEL).read_text() == Record.read(folder).files[MODEL]


def test_a_conflict_is_shown_in_place_and_blocks_the_next_update(make, renderer):
    folder = make().folder
    edit(folder / MODEL, EPS, EPS.replace("c.rms_norm_eps", "1e-3"))
    renderer(rendering(EPS, EPS.replace("c.rms_norm_eps", "1e-4")))
    done = update(folder)
    assert what(done) == {MODEL: What.CONFLICT}
    lines = (folder / MODEL).read_text().splitlines()
    (place,) = done.conflicts
    start = int(place.removeprefix(f"{MODEL}:")) - 1
    assert [line.split(" ")[0] for line in lines[start : start + 5 : 2]] == ["<<<<<<<", "=======", ">>>>>>>"]
    assert "1e-3" in lines[start + 1] and "1e-4" in lines[start + 3]
    with pytest.raises(ConfigError, match=place):
        update(folder)
    (folder / MODEL).write_text("\n".join([*lines[:start], lines[start + 1], *lines[start + 5 :], ""]))
    assert update(folder).changes == (), "a resolved conflict does not come back"


def test_dry_run_changes_nothing(make, renderer):
    folder = make().folder
    edit(folder / MODEL, EPS, EPS + "  # mine")
    renderer(rendering(EPS, EPS + "  # new"))
    before = content(folder)
    done = update(folder, dry_run=True)
    assert (what(done), len(done.conflicts), done.written) == ({MODEL: What.CONFLICT}, 1, False)
    assert content(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["mymodel"]


def test_evidence_in_the_readme_survives(make, renderer):
    folder = make().folder
    edit(folder / "README.md", "Not proved yet: run `onboard verify .` here.", "| check | rel. error |\n| all | 2e-7 |")
    renderer(fake.model_code_with_open)
    assert what(update(folder))["README.md"] is What.MERGED
    text = (folder / "README.md").read_text()
    assert "2e-7" in text and "altup" in text


def test_facts_that_moved(make, tmp_path):
    folder = make("mymodel", str(config(tmp_path / "tiny"))).folder
    config(tmp_path / "tiny", vocab_size=999)
    assert update(folder).changes == (), "the package is made from what was read, not from a path"
    done = update(folder, str(tmp_path / "tiny"))
    assert set(what(done)) == {"README.md", "onboard.json"}
    assert json.loads((folder / "onboard.json").read_text())["given"]["vocab_size"] == 999
    assert update(folder).changes == ()


def test_a_model_type_is_read_again_by_its_name(make):
    folder = make("mymodel", "qwen3").folder
    saved = Record.read(folder).origin
    assert (saved["kind"], saved["label"], saved["raw"]) == ("type", "qwen3", None)
    assert update(folder).changes == ()


def test_removed_files_stay_removed(make, renderer):
    folder = make().folder
    (folder / ".gitignore").unlink()
    (folder / MODEL).unlink()
    renderer(rendering(EPS, EPS + "  # new"))
    assert what(update(folder)) == {MODEL: What.KEPT}
    assert not (folder / MODEL).exists() and not (folder / ".gitignore").exists()


@pytest.mark.parametrize("stop", [0, 2, 9])
def test_a_stop_half_way_changes_nothing(make, renderer, monkeypatch, stop):
    folder = make().folder
    edit(folder / MODEL, "The whole model", "My whole model")
    renderer(fake.model_code_with_open)
    before = content(folder.parent)
    real, calls = Path.replace, []

    def stopping(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == stop + 1:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", stopping)
    with pytest.raises(KeyboardInterrupt):
        update(folder)
    assert content(folder.parent) == before


def test_what_is_no_package_of_ours_is_refused(tmp_path, make):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match=r"\.onboard/record"):
            update(folder)
    folder = make().folder
    for damaged in ("{", "{}", "[]", '{"origin": {}, "files": {}}', '{"origin": 1, "files": {"a": [1]}}'):
        (folder / FILE).write_text(damaged)
        with pytest.raises(ConfigError, match="version control"):
            update(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/../../b", "..\\x", ""])
def test_a_record_can_not_name_files_outside(make, name):
    folder = make().folder
    saved = json.loads((folder / FILE).read_text())
    saved["files"][name] = ["mine\n"]
    (folder / FILE).write_text(json.dumps(saved))
    (folder.parent / "outside").write_text("mine\n")
    with pytest.raises(ConfigError, match="inside the package"):
        update(folder)
    assert (folder.parent / "outside").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [("package", "../../../outside"), ("class_name", "A\nimport os\nForCausalLM"), ("distribution", 'a"\n[tool.x]')],
)
def test_a_record_can_not_name_what_is_no_name(make, key, value):
    folder = make().folder
    saved = json.loads((folder / FILE).read_text())
    answers = saved["files"][".copier-answers.yml"]
    found = [i for i, line in enumerate(answers) if line.startswith(f"{key}: ")]
    answers[found[0]] = f"{key}: {json.dumps(value)}\n"
    (folder / FILE).write_text(json.dumps(saved))
    before = content(folder)
    with pytest.raises(ConfigError, match=key):
        update(folder)
    assert content(folder) == before


def test_caches_of_tools_are_no_part_of_a_package(make):
    folder = make().folder
    for place in (folder / ".ruff_cache", folder / ".onboard" / "__pycache__", folder / "src/mymodel/__pycache__"):
        place.mkdir()
        (place / "x").write_bytes(b"\xff")
    assert update(folder).changes == ()
    make(force=True)
    assert (folder / ".ruff_cache" / "x").is_file()


def test_a_file_that_is_no_text_is_named(make, renderer):
    folder = make().folder
    (folder / MODEL).write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        update(folder)


@pytest.mark.parametrize(
    ("base", "mine", "new", "expected"),
    [
        ("a\n", "a\n", "a\n", None),
        ("a\n", "b\n", "a\n", None),
        ("a\n", "b\n", "b\n", None),
        ("a\n", "a\n", "b\n", (What.UPDATED, "b\n")),
        (None, None, "b\n", (What.ADDED, "b\n")),
        ("a\n", "a\n", None, (What.REMOVED, None)),
        ("a\n", "b\n", None, (What.KEPT, None)),
        ("a\n", None, None, None),
        ("a\n", None, "a\n", None),
        ("a\n", None, "b\n", (What.KEPT, None)),
        ("1\n2\n3\n", "1\n2\n3\n4", "0\n1\n2\n3\n", (What.MERGED, "0\n1\n2\n3\n4\n")),
        ("1\r\n2\r\n3\r\n", "1\r\n2\r\n4\r\n", "0\r\n2\r\n3\r\n", (What.MERGED, "0\r\n2\r\n4\r\n")),
    ],
)
def test_three_way(base, mine, new, expected):
    found = change("f", base, mine, new, "onboard")
    assert (None if found is None else (found.what, found.text)) == expected


def test_both_sides_add_the_same_file(make):
    found = change("f", None, "mine\n", "theirs\n", "onboard 1")
    assert found.text == "<<<<<<< yours\nmine\n=======\ntheirs\n>>>>>>> onboard 1\n"
    assert found.lines == (1,) == merge.conflicts(found.text)
