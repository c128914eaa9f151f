"""`onboard demo` against a stand-in server: it starts, streams, measures, stops, and fails loudly.

The real thing, with `vllm serve` and real weights, is `make demo`.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run
from onboard.demo import server as server_module
from onboard.demo.server import serving
from onboard.errors import RunError


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setattr(server_module, "ENTRY", ("fake_serve",))
    for name in (
        "VLLM_NEURON_CPU_MODE",
        "VLLM_NO_USAGE_STATS",
        "VLLM_NEURON_MODEL_PACKAGE",
    ):  # set first, so that the end restores them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("onboard.report.mode.neuron_devices", list)
    return monkeypatch


def test_the_server_answers_and_is_gone_afterwards(fake, tmp_path):
    with serving(tmp_path) as server:
        health = server.url.removesuffix("/v1") + "/health"
        assert urllib.request.urlopen(health).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(health, timeout=2)


def test_a_server_that_dies_shows_the_end_of_its_log(fake, tmp_path):
    with pytest.raises(RunError, match="no such device"), serving(tmp_path, "--die"):
        pass


def test_a_server_that_ignores_signals_is_gone_and_leaves_no_log(fake, tmp_path):
    fake.setattr(server_module, "STOP_TIMEOUT_S", 0.5)
    fake.setenv("TMPDIR", str(tmp_path))
    fake.setattr("tempfile.tempdir", None)
    with pytest.raises(KeyboardInterrupt), serving(tmp_path, "--stubborn") as server:
        raise KeyboardInterrupt
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=2)
    assert list(tmp_path.iterdir()) == []


def test_demo_streams_the_answer_and_says_cpu_mode(fake, smollm2, capsys):
    assert run(["demo", "smollm2", "--models", str(smollm2.parent)]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith("CPU mode")
    assert "The answer is Paris." in out
    assert "[4 tokens, " in out


def test_demo_as_json_keeps_stdout_for_the_document(fake, smollm2, gemma3_270m, capsys):
    assert run(["demo", "smollm2", "gemma3-270m", "--models", str(smollm2.parent), "--format", "json"]) == Exit.OK
    out, err = capsys.readouterr()
    parts = json.loads(out)
    assert [part["model"].split("/")[0] for part in parts] == ["HuggingFaceTB", "google"]
    assert all(part["mode"] == "cpu" and part["text"] == "The answer is Paris." for part in parts)
    assert "The answer is" in err


@pytest.mark.parametrize(
    ("name", "value"), [("VLLM_PLUGINS", "none"), ("VLLM_PLUGINS", "neuron"), ("VLLM_TARGET_DEVICE", "cpu")]
)
def test_demo_refuses_to_show_another_platform(fake, smollm2, capsys, name, value):
    fake.setenv(name, value)
    assert run(["demo", "smollm2", "--models", str(smollm2.parent)]) == Exit.FAILED
    err = capsys.readouterr().err
    assert name in err
    assert "expected the neuron plugin to be active" in err
