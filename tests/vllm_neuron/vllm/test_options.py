"""Options and requests that can't be honoured are refused by name, before anything starts."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm import PoolingParams, SamplingParams
from vllm.exceptions import VLLMClientError

import vllm_neuron
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.vllm import general, options
from vllm_neuron.vllm.platform import NeuronPlatform


@pytest.mark.parametrize(
    ("additional", "error", "words"),
    [
        ({"neuron_confg": {}}, ConfigError, "Did you mean 'neuron_config'"),
        ({"neuron_config": {"num_seq_buckets": [1]}}, ConfigError, "Did you mean 'num_seqs_buckets'"),
        ({"neuron_config": {"num_seqs_buckets": [4, 2]}}, ConfigError, "ascending"),
        ({"neuron_config": {"num_seqs_buckets": [True]}}, ConfigError, "positive integers"),
        ({"neuron_config": {"strict_shapes": 1}}, ConfigError, "true or false"),
        ({"neuron_config": {"ep_degree": 2}}, UnsupportedError, "not supported yet"),
        ({"neuron_config": {"on_device_sampling_config": None}}, UnsupportedError, "on_device_sampling_config"),
        ({"neuron_config": []}, ConfigError, "an object"),
    ],
)
def test_additional_config_is_strict(additional: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        options.neuron_config(SimpleNamespace(additional_config=additional))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_logprob_token_ids", np.zeros((2, 3), np.int64)),
        ("prompt_logprob_start", 0),
        ("thinking_token_budget", 0),
        ("trace_decode_token_ids", [1]),
        ("watermarking", True),
    ],
)
def test_a_request_is_refused_by_name(name: str, value: Any) -> None:
    params = SamplingParams()
    setattr(params, name, value)
    with pytest.raises(options.RequestError, match=name) as caught:
        NeuronPlatform.validate_request(None, params)
    # vLLM hands its own client errors through to the server, which answers 400 to a ValueError.
    assert isinstance(caught.value, VLLMClientError) and isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UnsupportedError) and name in str(caught.value)


def test_pooling_is_refused_and_plain_requests_pass() -> None:
    with pytest.raises(options.RequestError, match="text generation"):
        NeuronPlatform.validate_request(None, PoolingParams(task="embed"))
    NeuronPlatform.validate_request(None, SamplingParams(watermarking=False, prompt_logprobs=3, logit_bias={1: 2.0}))


def test_a_wrong_cpu_mode_does_not_switch_the_plugin_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM hides what the probe raises, so the probe says yes and the platform raises where people see it."""
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "maybe")
    assert vllm_neuron.register() == vllm_neuron.PLATFORM
    with pytest.raises(ConfigError, match="VLLM_NEURON_CPU_MODE"):
        NeuronPlatform.check_and_update_config(None)  # type: ignore[arg-type]


def test_unknown_variables(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("VLLM_NEURON_CPU_MODE", "1")
    monkeypatch.setenv("VLLM_NO_SUCH_VARIABLE", "1")
    monkeypatch.setattr(logging.getLogger("vllm_neuron"), "propagate", True)
    NeuronPlatform.validate_environ(hard_fail=False)
    assert "VLLM_NO_SUCH_VARIABLE" in caplog.text and "VLLM_NEURON_CPU_MODE" not in caplog.text
    with pytest.raises(ValueError, match="VLLM_NO_SUCH_VARIABLE"):
        NeuronPlatform.validate_environ(hard_fail=True)
    monkeypatch.setenv("VLLM_NEURON_CPU_MOED", "1")
    with pytest.raises(ConfigError, match="Did you mean 'VLLM_NEURON_CPU_MODE'"):
        NeuronPlatform.validate_environ(hard_fail=False)


def test_our_log_lines_go_where_vllm_writes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = logging.getLogger("vllm_neuron"), logging.getLogger("vllm")
    handler = logging.NullHandler()
    monkeypatch.setattr(theirs, "handlers", [handler])
    monkeypatch.setattr(ours, "handlers", [])
    monkeypatch.setattr(ours, "propagate", True)
    general.log_like_vllm()
    general.log_like_vllm()
    assert ours.handlers == [handler] and not ours.propagate


def test_the_probe_imports_neither_torch_nor_vllm(cpu_mode: None) -> None:
    """It runs in every process, before vLLM's command line has started."""
    code = (
        "import vllm_neuron, sys; assert vllm_neuron.register(); print('torch' in sys.modules, 'vllm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"], done.stdout


def test_snapshots_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_ENABLE", "1")
    monkeypatch.setenv("VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_REQUEST", "mine")
    given = SimpleNamespace(additional_config=None)
    snapshot = options.neuron_config(given).input_snapshot
    assert snapshot is not None and snapshot.requests == ("mine",) and snapshot.dir == "input-snapshots"
    given.additional_config = {"neuron_config": {"input_snapshot": {"dir": "d", "steps": [0]}}}
    with pytest.raises(ConfigError, match="Keep one of the two"):
        options.neuron_config(given)
