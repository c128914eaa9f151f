"""Counters of a child process in this process's registry, and in vLLM's directory when there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from vllm_neuron import envs
from vllm_neuron.metrics import shared

CHILD = """
import torch
import vllm_neuron.functional as NF
from vllm_neuron import metrics
NF.rms_norm(torch.ones(2, 4), None, eps=1e-6)
metrics.STEPS.record("decode", 4, 32, real=3, padded=4)
metrics.publish()
metrics.publish()
"""


def run_child(variables: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", CHILD], env=envs.child(variables), check=True)


def read(folder: Path) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_counts_of_two_processes_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        run_child({shared.OURS: str(tmp_path), shared.THEIRS: ""})
    found = read(tmp_path)
    assert found["vllm_neuron_kernel_calls_total", "reference", "rms_norm"] == 2
    assert found["vllm_neuron_step_tokens_total", "decode"] == 6
    assert found["vllm_neuron_step_padding_total", "decode"] == 2


def test_vllms_directory_goes_first(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    run_child({shared.OURS: str(ours), shared.THEIRS: str(theirs)})
    assert not list(ours.iterdir())
    assert read(theirs)["vllm_neuron_kernel_calls_total", "reference", "rms_norm"] == 1


def test_a_directory_of_the_users_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "deep" / "metrics"
    monkeypatch.setenv(shared.OURS, str(wanted))
    monkeypatch.delenv(shared.THEIRS, raising=False)
    shared.share()
    assert wanted.is_dir()


def test_nothing_is_written_outside_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shared.OURS, raising=False)
    monkeypatch.delenv(shared.THEIRS, raising=False)
    monkeypatch.chdir(tmp_path)
    shared.export("some", "Some.", {}, 1)
    assert not list(tmp_path.iterdir())
