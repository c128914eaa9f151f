"""The real model's files: every name, shape and shard accounted for, and no weight read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from onboard.prove import Package, Status, prove
from onboard.prove.checkpoint import check_checkpoint
from tests.support.hf import MODELS
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.loading.safetensors_file import FileSlice

LLAMA = "reference_models.llama3"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    MODELS["llama"].save(tmp_path)
    return tmp_path


def test_every_size_that_the_heads_allow(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FileSlice, "_fill")  # a read of any number would raise
    checks, notes = check_checkpoint(Package.load(LLAMA), saved)
    assert [(check.what, check.status) for check in checks] == [
        (f"real checkpoint, TP {size}", Status.PASSED) for size in (1, 2, 4)
    ]
    assert "TP 1: 27 parameters from 39 tensors; 164,416 numbers a rank" in notes[0]
    assert notes[-1].startswith("real checkpoint: the model can't be divided over 3, 5-64 ranks")


def test_missing_foreign_and_misshapen_tensors(saved: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    tensors["model.layers.0.strange.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, saved / "model.safetensors")
    (check,), _ = check_checkpoint(Package.load(LLAMA), saved)
    assert check.status is Status.FAILED
    assert "norm.weight needs model.norm.weight" in check.message and "model.layers.0.strange.weight" in check.message
    tensors["model.norm.weight"] = tensors.pop("model.layers.0.strange.weight")[:-1].clone()
    save_file(tensors, saved / "model.safetensors")
    (check,), _ = check_checkpoint(Package.load(LLAMA), saved)
    assert check.status is Status.FAILED and "norm.weight" in check.message and "[63]" in check.message


@pytest.mark.parametrize("by_file", [False, True])
def test_an_index_alone(by_file: bool, saved: Path) -> None:
    names = list(load_file(saved / "model.safetensors"))
    (saved / "model.safetensors").unlink()
    index = saved / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}))
    (check,), notes = check_checkpoint(Package.load(LLAMA), index if by_file else saved)
    assert check.status is Status.PASSED and f"only its {len(names)} names were checked" in notes[-1]
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names[1:], "model-00001-of-00002.safetensors")}))
    (check,), _ = check_checkpoint(Package.load(LLAMA), saved)
    assert check.status is Status.FAILED


def test_folders_that_hold_no_checkpoint(tmp_path: Path, saved: Path) -> None:
    with pytest.raises(ConfigError, match=r"--checkpoint"):
        check_checkpoint(Package.load(LLAMA), tmp_path / "nowhere")
    (saved / "model.safetensors").write_bytes(b"\0" * 40)
    (check,), _ = check_checkpoint(Package.load(LLAMA), saved)
    assert check.status is Status.FAILED and "model.safetensors" in check.message


def test_a_checkpoint_alone_is_a_partial_proof(saved: Path) -> None:
    proof = prove(Package.load(LLAMA), checkpoint=saved, only=["checkpoint"])
    assert proof.partial == ("checkpoint",) and {check.kind for check in proof.checks} == {"checkpoint"}
    assert proof.verdict.value == "proved"
