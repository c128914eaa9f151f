"""A real server of two ranks whose operations all run on NKI kernels, and what its /metrics says of them."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_neuron.vllm.test_server import Server, assert_two_ranks_agree_with_one


def metrics_of(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    ours = [line.rsplit(" ", 1) for line in lines if line.startswith("vllm_neuron_")]
    return {name: float(value) for name, value in ours}


@pytest.mark.slow
def test_two_ranks_on_kernels(checkpoint: Any, cpu_mode: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_KERNELS", "require")
    running = Server(checkpoint("llama").folder, tmp_path / "log.txt", "--tensor-parallel-size", "2")
    try:
        running.wait_until_ready()
        assert_two_ranks_agree_with_one(running, checkpoint)
        found = metrics_of(running)
    finally:
        running.kill()
    calls = {name: count for name, count in found.items() if name.startswith("vllm_neuron_kernel_calls_total")}
    assert calls['vllm_neuron_kernel_calls_total{kernel="nki.attention_decode",operation="attention_decode"}'] > 20
    assert not [name for name in calls if 'kernel="nki.' not in name and 'kernel="compiler"' not in name]
    assert not [name for name in found if name.startswith("vllm_neuron_kernel_refusals_total")]
