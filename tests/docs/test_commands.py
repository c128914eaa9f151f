"""Every command in the documentation runs here, or stands in a table that says where it is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import commands
from tests.docs.commands import ELSEWHERE, ROOT, Command

ALL = list(commands.commands())
HERE = [command for command in ALL if command.text not in ELSEWHERE]


@pytest.mark.parametrize("command", HERE, ids=lambda c: f"{c.page}:{c.line}")
def test_command_runs(command: Command, tmp_path: Path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command.text}\n{done.stdout}\n{done.stderr}"


def test_places_in_the_table_exist():
    assert [place for place in ELSEWHERE.values() if not (ROOT / place).exists()] == []


def test_commands_are_found(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("text\n```bash\n# note\n$ a \\\n  b  # why\nc\n```\n```python\nd\n```\n")
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    assert list(commands.commands()) == [Command("README.md", 4, "a b"), Command("README.md", 6, "c")]


def test_the_proof_of_add_a_model_runs(tmp_path, monkeypatch):
    """The page's Python block, word for word, on a tiny checkpoint; only the architecture's name is another."""
    import re

    from tests.support.hf import MODELS

    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/add-a-model.md").read_text(), re.DOTALL | re.MULTILINE)
    proof = next(block for block in blocks if "Session(" in block)
    MODELS["llama"].save(tmp_path / "my-checkpoint")
    script = proof.replace("MyModelForCausalLM", "LlamaForCausalLM")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"[\d.e-]+", done.stdout.replace("tensor(", "")).group()) < 1e-5
