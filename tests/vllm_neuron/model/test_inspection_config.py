"""tensor_capture, tensor_replacement and input_snapshot are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.inspection_config import InputSnapshot, Ranges, TensorCapture
from vllm_neuron.model.neuron_config import NeuronConfig

CAPTURE = {"modules": ["layers.*"], "dir": "d"}


def test_a_whole_option() -> None:
    given = {**CAPTURE, "steps": [0, "5-7"], "ranks": [1, 0, 1], "tensors": "inputs", "max_bytes": 10}
    config = NeuronConfig.from_dict({"tensor_capture": given}).tensor_capture
    assert config == TensorCapture(("layers.*",), "d", Ranges(((0, 0), (5, 7))), (0, 1), "inputs", 10)
    assert config.steps is not None and [n for n in range(10) if n in config.steps] == [0, 5, 6, 7]
    assert NeuronConfig.from_dict({"tensor_capture": None}).tensor_capture is None
    assert NeuronConfig.from_dict({"tensor_capture": config}).tensor_capture is config


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("tensor_capture", [], "an object with modules, dir"),
        ("tensor_capture", {"dir": "d"}, "tensor_capture.modules: got None"),
        ("tensor_capture", {"modules": ["a"]}, "tensor_capture.dir: got None"),
        ("tensor_capture", {**CAPTURE, "step": [1]}, "Did you mean 'steps'"),
        ("tensor_capture", {**CAPTURE, "modules": "layers.0"}, "a list of texts"),
        ("tensor_capture", {**CAPTURE, "modules": []}, "at least one"),
        ("tensor_capture", {**CAPTURE, "dir": ""}, "a text that is not empty"),
        ("tensor_capture", {**CAPTURE, "dir": "a\0b"}, "a text that is not empty"),
        ("tensor_capture", {**CAPTURE, "steps": [True]}, r"steps\[0\]"),
        ("tensor_capture", {**CAPTURE, "steps": ["7-5"]}, "ranges such as"),
        ("tensor_capture", {**CAPTURE, "steps": []}, "at least one"),
        ("tensor_capture", {**CAPTURE, "steps": 3}, "a list of integers"),
        ("tensor_capture", {**CAPTURE, "ranks": [-1]}, r"ranks\[0\]"),
        ("tensor_capture", {**CAPTURE, "tensors": "all"}, "both or inputs or outputs"),
        ("tensor_capture", {**CAPTURE, "max_bytes": 0}, "an integer of 1 or more"),
        ("tensor_capture", {**CAPTURE, "max_bytes": True}, "an integer of 1 or more"),
        ("tensor_replacement", {**CAPTURE, "at": "middle"}, "output or input"),
        ("input_snapshot", {"dir": "d"}, "steps, requests or tokens"),
        ("input_snapshot", {"dir": "d", "tokens": ["a"]}, r"tokens\[0\]"),
        ("input_snapshot", {"dir": "d", "requests": [3]}, r"requests\[0\]"),
        ("input_snapshot", {"dir": "d", "steps": [0], "max_captures": 0}, "max_captures"),
    ],
)
def test_wrong_values_are_named(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        NeuronConfig.from_dict({option: value})
    assert caught.value.field.startswith(f"neuron_config.{option}")


@pytest.mark.parametrize("option", ["tensor_capture", "tensor_replacement"])
def test_hooks_are_refused_beside_compiled_layers(option: str) -> None:
    with pytest.raises(ConfigError, match="no compile_layers beside it"):
        NeuronConfig.from_dict({option: CAPTURE, "compile_layers": True})


PREFIX = "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_"


def test_snapshots_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert InputSnapshot.from_environment() is None
    for name, value in {"CAPTURE_AT_CALL": "0, 5-7", "CAPTURE_TOKEN": "11,12", "RANKS": "0", "DIR": "d"}.items():
        monkeypatch.setenv(PREFIX + name, value)
    assert InputSnapshot.from_environment() is None, "the switch is ENABLE"
    monkeypatch.setenv(PREFIX + "ENABLE", "1")
    expected = InputSnapshot("d", Ranges(((0, 0), (5, 7))), None, (11, 12), 4, (0,))
    assert InputSnapshot.from_environment() == expected
    monkeypatch.setenv(PREFIX + "CAPTURE_TOKEN", "a")
    with pytest.raises(ConfigError, match=r"SNAPSHOT\.tokens"):
        InputSnapshot.from_environment()


def test_snapshots_by_the_environment_need_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "ENABLE", "1")
    with pytest.raises(ConfigError, match="steps, requests or tokens"):
        InputSnapshot.from_environment()
