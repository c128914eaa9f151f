"""Checkpoint folders: what is read is what was saved, and every fault of the files is named before anything is read."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from vllm_neuron.errors import CheckpointError, NeuronError, UnsupportedError
from vllm_neuron.model.loading import Checkpoint

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def save_sharded(folder: Path) -> dict[str, Tensor]:
    tensors = {f"layers.{i}.weight": torch.randn(6, 4) for i in range(4)}
    names = list(tensors)
    for file, part in ((FIRST, names[:2]), (SECOND, names[2:])):
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: FIRST if i < 2 else SECOND for i, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tensors


def rewrite_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def refused(folder: Path, kind: type[NeuronError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        Checkpoint(folder)
    return str(caught.value)


def raw(path: Path, header: bytes, data: bytes = b"") -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def test_sharded_with_index(tmp_path: Path) -> None:
    tensors = save_sharded(tmp_path)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.tensors.keys() == tensors.keys() and checkpoint.bytes_read == 0
        for name, tensor in tensors.items():
            assert torch.equal(checkpoint.slice(name)[...], tensor)
            assert checkpoint.slice(name).get_shape() == [6, 4] and checkpoint.slice(name).get_dtype() == "F32"
        assert checkpoint.bytes_read == sum(t.nbytes for t in tensors.values())


def test_sharded_without_index(tmp_path: Path) -> None:
    tensors = save_sharded(tmp_path)
    (tmp_path / INDEX).unlink()
    assert Checkpoint(tmp_path).tensors.keys() == tensors.keys()


def test_a_single_file_is_preferred_to_strangers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    save_file({"b": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    assert list(Checkpoint(tmp_path).tensors) == ["a"]
    assert "not reading consolidated.safetensors" in caplog.text


@given(data=st.data())
def test_parts_of_any_shape_and_dtype(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    shape = data.draw(st.lists(st.integers(0, 7), max_size=4))
    stored = data.draw(st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]))
    wanted = data.draw(st.sampled_from([None, torch.float32, torch.bfloat16]))
    tensor = torch.randn(shape, dtype=torch.float64).to(stored)
    folder = tmp_path_factory.mktemp("parts")
    save_file({"before": torch.zeros(3, dtype=stored), "x": tensor}, folder / "model.safetensors")
    bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    index = tuple(slice(a, b) for a, b in bounds)
    with Checkpoint(folder) as checkpoint:
        for part in (index, ...):
            found = checkpoint.slice("x", wanted)[part]
            assert found.dtype == (wanted or stored) and found.is_contiguous()
            assert torch.equal(found, tensor[part].to(wanted or stored))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [(0, 3000), (1500, 3000), (7, 11)])
def test_parts_larger_than_a_block(dtype: torch.dtype, columns: tuple[int, int], tmp_path: Path) -> None:
    tensor = torch.randn(2, 1100, 3000)
    save_file({"x": tensor}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        found = checkpoint.slice("x", dtype)[:, 3:1090, slice(*columns)]
    assert torch.equal(found, tensor[:, 3:1090, slice(*columns)].to(dtype))


def test_a_rank_reads_only_its_own_bytes(tmp_path: Path) -> None:
    save_file({"x": torch.randn(64, 4096)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        rows = checkpoint.slice("x")[16:32]
        assert checkpoint.bytes_read == rows.nbytes
        columns = checkpoint.slice("x")[:, 1024:2048]
        assert checkpoint.bytes_read == rows.nbytes + columns.nbytes


@pytest.mark.parametrize("quantised", [False, True])
def test_C5_missing_shard(tmp_path: Path, quantised: bool) -> None:
    save_sharded(tmp_path)
    (tmp_path / SECOND).unlink()
    if quantised:
        (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert f"missing shard: got '{SECOND}'" in refused(tmp_path)


def test_C5_missing_shard_of_a_set_without_index(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    (tmp_path / SECOND).unlink()
    (tmp_path / INDEX).unlink()
    assert SECOND in refused(tmp_path)


def test_C5_empty_folder_or_no_folder(tmp_path: Path) -> None:
    assert "a folder with *.safetensors files" in refused(tmp_path)
    assert "expected a folder" in refused(tmp_path / "absent")


@pytest.mark.parametrize("indexed", [True, False])
def test_C5_a_directory_with_a_files_name_is_no_file(tmp_path: Path, indexed: bool) -> None:
    (tmp_path / "x.safetensors").mkdir()
    if indexed:
        (tmp_path / INDEX).write_text('{"weight_map": {"a": "x.safetensors"}}')
    assert "x.safetensors" in refused(tmp_path)


def test_C7_truncated_shard(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    whole = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).write_bytes(whole[:-64])
    message = refused(tmp_path)
    assert f"{SECOND}: size: got {len(whole) - 64}, expected {len(whole)} bytes" in message
    (tmp_path / SECOND).write_bytes(whole[:20])
    assert f"{SECOND}: size: got 20, expected at least" in refused(tmp_path)
    (tmp_path / SECOND).write_bytes(b"")
    assert "header length" in refused(tmp_path)


def test_C7_bytes_past_the_end(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    with (tmp_path / FIRST).open("ab") as stream:
        stream.write(b"junk")
    assert f"{FIRST}: size" in refused(tmp_path)


def test_C7_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1000)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        with (tmp_path / "model.safetensors").open("r+b") as stream:
            stream.truncate(500)
        with pytest.raises(CheckpointError, match="as long as when the load began"):
            checkpoint.slice("x")[...]


def test_C9_pickled_files_are_never_opened(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.bin"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    message = refused(tmp_path)
    assert "pytorch_model.bin" in message and "save_pretrained" in message and "\n" not in message
    assert not Path("opened").exists()


def test_C9_pickled_files_beside_safetensors_do_not_matter(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "training_args.bin").write_bytes(b"junk")
    assert list(Checkpoint(tmp_path).tensors) == ["a"]


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"not json", b"", "header"),
        (b"[1, 2]", b"", "header"),
        (b'{"a": 3}', b"", "header"),
        (b"\xff\xfe\xfd", b"", "header"),
        (b"[" * 5000, b"", "header"),
        (json.dumps({"a": {**ENTRY, "data_offsets": [0, 4]}}).encode(), bytes(4), "8 bytes for F32"),
        (json.dumps({"a": {**ENTRY, "data_offsets": [8, 16]}}).encode(), bytes(16), "no gap or overlap"),
        (json.dumps({"a": ENTRY, "b": ENTRY}).encode(), bytes(8), "no gap or overlap"),
        (json.dumps({"a": {**ENTRY, "shape": [-2]}}).encode(), bytes(8), "sizes of 0 or more"),
        (json.dumps({"a": {**ENTRY, "shape": ["2"]}}).encode(), bytes(8), "sizes of 0 or more"),
        (json.dumps({"a": {**ENTRY, "data_offsets": 8}}).encode(), bytes(8), "data_offsets"),
        (b'{"a": %b, "a": %b}' % ((json.dumps(ENTRY).encode(),) * 2), bytes(8), "listed twice"),
    ],
)
def test_headers_that_make_no_sense(tmp_path: Path, header: bytes, data: bytes, said: str) -> None:
    raw(tmp_path / "model.safetensors", header, data)
    assert said in refused(tmp_path)


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    raw(tmp_path / "model.safetensors", json.dumps({"a": {**ENTRY, "dtype": "F7"}}).encode(), bytes(8))
    assert "a: dtype: got 'F7'" in refused(tmp_path, UnsupportedError)


def test_an_oversized_header_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    assert f"header length: got {2**62}" in refused(tmp_path)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in refused(tmp_path)


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b.safetensors", "a.bin", 3, None]
)
def test_an_index_may_not_leave_its_folder(tmp_path: Path, name: object) -> None:
    save_sharded(tmp_path)
    rewrite_index(tmp_path, lambda listed: listed.update({"layers.0.weight": name}))
    assert "a safetensors file's plain name, inside the folder" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '"x"'])
def test_a_malformed_index(tmp_path: Path, text: str) -> None:
    save_sharded(tmp_path)
    (tmp_path / INDEX).write_text(text)
    assert INDEX in refused(tmp_path)


def test_an_index_and_its_shards_must_agree(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    rewrite_index(tmp_path, lambda listed: listed.update({"layers.0.weight": SECOND}))
    assert f"expected {FIRST}" in refused(tmp_path)
    rewrite_index(tmp_path, lambda listed: listed.update({"layers.0.weight": FIRST, "absent": FIRST}))
    assert f"{INDEX}: absent" in refused(tmp_path)
    rewrite_index(tmp_path, lambda listed: [listed.pop("absent"), listed.pop("layers.3.weight")])
    assert "layers.3.weight" in refused(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"a": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    assert "one.safetensors and two.safetensors" in refused(tmp_path)


def test_links_to_files_elsewhere_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    tensors = save_sharded(tmp_path / "blobs")
    for name in (FIRST, SECOND, INDEX):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    assert Checkpoint(tmp_path / "snapshot").tensors.keys() == tensors.keys()
    shutil.rmtree(tmp_path / "blobs")
    assert "broken links" in refused(tmp_path / "snapshot")


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"quantization_config": {"bits": 4}}, "not named"),
    ],
)
def test_a_config_that_says_quantised(tmp_path: Path, config: dict[str, object], method: str) -> None:
    save_sharded(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert method in refused(tmp_path, UnsupportedError)


@pytest.mark.parametrize(
    ("tensors", "method"),
    [
        ({"a.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}, "fp8"),
        ({"a.weight": torch.zeros(4, 4, dtype=torch.int8)}, "I8"),
        ({"a.weight": torch.zeros(2), "a.weight_scale_inv": torch.zeros(2)}, "fp8"),
        ({"a.qweight": torch.zeros(2, dtype=torch.int32)}, "gptq"),
        ({"a.weight_packed": torch.zeros(2, dtype=torch.int32)}, "compressed-tensors"),
        ({"a.gate_up_proj_blocks": torch.zeros(2, dtype=torch.uint8)}, "mxfp4"),
    ],
)
def test_tensors_that_say_quantised(tmp_path: Path, tensors: dict[str, Tensor], method: str) -> None:
    save_file(tensors, tmp_path / "model.safetensors")
    message = refused(tmp_path, UnsupportedError)
    assert method in message and "bf16" in message


def test_a_quantisers_own_file_says_quantised(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert "modelopt" in refused(tmp_path, UnsupportedError)


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    save_sharded(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refused(tmp_path)


def test_integer_buffers_are_listed_but_not_read(tmp_path: Path) -> None:
    save_file({"position_ids": torch.arange(4)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint, pytest.raises(UnsupportedError, match="position_ids"):
        checkpoint.slice("position_ids")
