"""Counters of a child process in this process's registry, and in vLLM's directory when there is one."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

import vllm_neuron.functional as NF
from vllm_neuron import envs, metrics
from vllm_neuron.functional import dispatch
from vllm_neuron.metrics import shared


def work(variables: dict[str, str]) -> None:
    """What a worker does: two operations, a step, and its counts written twice."""
    for name, value in variables.items():
        envs.set_foreign(name, value, only_if_unset=False)
    dispatch.state.calls.clear()
    with NF.use_kernels("auto"):
        NF.rms_norm(torch.ones(2, 4), None, eps=1e-6)
        metrics.STEPS.tokens.clear()
        metrics.STEPS.padding.clear()
        metrics.STEPS.record("decode", 4, 32, real=3, padded=4)
        metrics.publish()
        NF.rms_norm(torch.ones(2, 4), None, eps=1e-6)
        metrics.publish()


def run_child(variables: dict[str, str]) -> None:
    child = multiprocessing.get_context("fork").Process(target=work, args=(variables,))
    child.start()
    child.join()
    assert child.exitcode == 0


def read(folder: Path) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_counts_of_processes_add_up_and_vllms_directory_goes_first(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    run_child({shared.OURS: str(ours), shared.THEIRS: ""})
    assert not list(theirs.iterdir())
    for number in (1, 2):
        run_child({shared.OURS: "" if number == 1 else str(ours), shared.THEIRS: str(theirs)})
    assert len(list(ours.iterdir())) == 1
    for folder, processes in ((ours, 1), (theirs, 2)):
        found = read(folder)
        assert found["vllm_neuron_kernel_calls_total", "reference", "rms_norm"] == 2 * processes
        assert found["vllm_neuron_step_tokens_total", "decode"] == 3 * processes
        assert found["vllm_neuron_step_padding_total", "decode"] == processes


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
