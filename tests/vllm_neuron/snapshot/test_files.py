"""Captured tensors on disk: whole files or none, limits, full disks, damaged and foreign folders."""

from __future__ import annotations

import json
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.inspection_config import TensorCapture
from vllm_neuron.snapshot.files import CaptureWriter, write_whole
from vllm_neuron.snapshot.index import CaptureFolder
from vllm_neuron.snapshot.label import Span, StepLabel


def writer(folder: Path, **options: Any) -> CaptureWriter:
    return CaptureWriter(TensorCapture(("a",), str(folder), **options), 0, {"model": "m"}, ["a", "b"])


def write(made: CaptureWriter, step: int, rows: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One step of one request with two calls of ``a``."""
    label = StepLabel(step, "prefill", (Span("r", 0, rows, 10 * step),))
    value = torch.arange(rows * 8).view(rows, 8).to(dtype)
    made.begin(step, list(range(rows)))
    made.add(label, "a", {"0": value.clone()}, [value + 1])
    made.add(label, "a", {"0": value.clone()}, [value.t()])
    made.flush()
    return value


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Files of this process can't grow beyond ``size``: a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_what_is_written_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    made = writer(tmp_path)
    values = [write(made, step, dtype=dtype) for step in (0, 7)]
    made.close()
    folder = CaptureFolder.open(tmp_path)
    assert folder.ranks == [0] and folder.modules == ["a"] and folder.about[0]["modules"] == ["a", "b"]
    records = list(folder.records("a"))
    assert [(r.step, r.phase, len(r.outputs)) for r in records] == [(0, "prefill", 1)] * 2 + [(7, "prefill", 1)] * 2
    assert torch.equal(records[0].input, values[0]) and records[0].input.dtype is dtype
    assert torch.equal(records[1].output, values[0].t())
    assert records[2].label.spans == (Span("r", 0, 4, 70),)
    assert [r.step for r in folder.records("a", step=7)] == [7, 7]
    with pytest.raises(ConfigError, match="captured"):
        next(folder.records("b"))
    with pytest.raises(ConfigError, match="rank"):
        next(folder.records("a", rank=1))


def test_a_run_that_ended_without_an_index_is_read(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made._indexed = float("inf")
    write(made, 0)
    assert not (tmp_path / "rank0" / "index.json").exists()
    assert [step.label.step for step in CaptureFolder.open(tmp_path).steps] == [0]


def test_index_says_where_everything_is(tmp_path: Path) -> None:
    made = writer(tmp_path)
    write(made, 3)
    made.close()
    index = json.loads((tmp_path / "rank0" / "index.json").read_text())
    assert index["steps"] == [
        {
            "step": 3,
            "phase": "prefill",
            "token_ids": [0, 1, 2, 3],
            "calls": [
                {"module": "a", "call": 0, "spans": [["r", 0, 4, 30]]},
                {"module": "a", "call": 1, "spans": [["r", 0, 4, 30]]},
            ],
            "file": "step-000003.safetensors",
            "bytes": 512,
            "tensors": {
                f"a/{call}/{key}": {"dtype": "float32", "shape": [8, 4] if (call, key) == (1, "out.0") else [4, 8]}
                for call in (0, 1)
                for key in ("in.0", "out.0")
            },
        }
    ]


def test_limit_stops_before_it_is_passed_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = writer(tmp_path, max_bytes=1200)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            write(made, step)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "max_bytes 1200 would be passed at step 2" in caplog.text
    folder = CaptureFolder.open(tmp_path)
    assert [step.label.step for step in folder.steps] == [0, 1] and made.bytes == 1024
    assert folder.about[0]["stopped"] == made.stopped


def test_a_full_disk_leaves_whole_files_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = writer(tmp_path)
    write(made, 0)
    with caplog.at_level(logging.WARNING), file_limit(2000):
        write(made, 1, rows=100)
        write(made, 2)
        made.close()
    said = [record.getMessage() for record in caplog.records]
    assert "step 1 could not be written" in said[0] and "File too large" in said[0]
    assert sum("rank 0 stops" in each for each in said) == 1
    assert [path.name for path in (tmp_path / "rank0").glob("*.safetensors")] == ["step-000000.safetensors"]
    assert not list(tmp_path.rglob("*.partial"))
    assert [step.label.step for step in CaptureFolder.open(tmp_path).steps] == [0]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("old")

    def half(temporary: Path) -> None:
        temporary.write_text("ha")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_whole(path, half)
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"] and path.read_text() == "old"


def test_folders_that_are_no_captures(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be read"):
        CaptureFolder.open(tmp_path / "no")
    with pytest.raises(ConfigError, match="rank0"):
        CaptureFolder.open(tmp_path)
    (tmp_path / "rank0").mkdir()
    path = tmp_path / "rank0" / "step-000000.safetensors"
    path.write_bytes(b"\x00" * 20)
    with pytest.raises(ConfigError, match="a whole safetensors file"):
        CaptureFolder.open(tmp_path)
    from safetensors.torch import save_file

    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(ConfigError, match="this version wrote"):
        CaptureFolder.open(tmp_path)
    save_file({"x": torch.ones(1)}, path, metadata={"capture": '{"schema": 1, "step": 0}'})
    with pytest.raises(ConfigError, match="a header as tensor_capture writes it"):
        CaptureFolder.open(tmp_path)


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    made = writer(tmp_path / "one")
    write(made, 0)
    made.close()
    (tmp_path / "two" / "rank0").mkdir(parents=True)
    name = "step-000000.safetensors"
    (tmp_path / "two" / "rank0" / name).symlink_to(tmp_path / "one" / "rank0" / name)
    with pytest.raises(ConfigError, match="Links out of the folder"):
        CaptureFolder.open(tmp_path / "two")


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="a folder that can be made"):
        writer(tmp_path / "file")
