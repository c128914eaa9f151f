"""The cache of references: whole files only, the oldest go first, and nothing that goes wrong is silent."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from vllm_neuron.accuracy import golden
from vllm_neuron.accuracy.golden import GoldenCache, default_folder, digest
from vllm_neuron.errors import CheckpointError, ConfigError, ShapeError

KEYS = [digest(i) for i in range(5)]


def store(cache: GoldenCache, key: str, rows: int = 4, seed: int = 0) -> tuple[str | None, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    content = {
        "keys.0": torch.randn(rows, 2, 8, generator=generator).bfloat16(),
        "logits": torch.randn(rows, 32, generator=generator),
    }
    shapes = {name: (each.dtype, tuple(each.shape)) for name, each in content.items()}
    pieces = [content["keys.0"], *content["logits"].split(3)]
    return cache.store(key, shapes, pieces), content


def test_what_is_stored_comes_back_and_is_plain_safetensors(tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path, 1 << 20)
    assert cache.load(KEYS[0]) is None
    why, content = store(cache, KEYS[0])
    assert why is None
    for found in (cache.load(KEYS[0]), load_file(cache.path(KEYS[0]))):
        assert found is not None and found.keys() == content.keys()
        assert all(torch.equal(found[name], content[name]) for name in content)
    assert [path.name for path in tmp_path.iterdir()] == [cache.path(KEYS[0]).name]


def test_the_files_used_longest_ago_go_first(tmp_path: Path) -> None:
    store(GoldenCache(tmp_path, 1 << 20), KEYS[0])
    size = GoldenCache(tmp_path).path(KEYS[0]).stat().st_size
    cache = GoldenCache(tmp_path, 3 * size)
    for age, key in ((30, KEYS[0]), (20, KEYS[1]), (10, KEYS[2])):
        store(cache, key)
        os.utime(cache.path(key), (time.time() - age,) * 2)
    assert cache.load(KEYS[0]) is not None  # used now, so the second is the oldest
    store(cache, KEYS[3])
    assert [cache.path(key).exists() for key in KEYS[:4]] == [True, False, True, True]
    used = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert used <= 3 * size


def test_a_mapped_reference_outlives_its_file(tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path, 1 << 20)
    _, content = store(cache, KEYS[0])
    found = cache.load(KEYS[0])
    cache.path(KEYS[0]).unlink()
    assert found is not None and torch.equal(found["logits"], content["logits"])


def test_what_is_over_the_limit_is_not_kept(tmp_path: Path) -> None:
    why, _ = store(GoldenCache(tmp_path, 100), KEYS[0])
    assert why is not None and "over the limit" in why
    why, _ = store(GoldenCache(tmp_path / "off", 0), KEYS[0])
    assert why is not None and not (tmp_path / "off").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GoldenCache(tmp_path, 1 << 20)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(golden.os, "replace", full)
        why, _ = store(cache, KEYS[0])
    assert why is not None and "disk" in why and "full" in why
    assert list(tmp_path.iterdir()) == []
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(golden.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    why, _ = store(cache, KEYS[0])
    assert why is not None and "would fill the disk" in why and list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    why, _ = store(GoldenCache(blocked / "goldens", 1 << 20), KEYS[0])
    assert why is not None and why.startswith("not cached")
    assert GoldenCache(blocked / "goldens", 1 << 20).load(KEYS[0]) is None


def test_damaged_and_foreign_files_are_removed(tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path, 1 << 20)
    store(cache, KEYS[0])
    path = cache.path(KEYS[0])
    path.write_bytes(path.read_bytes()[:-7])
    assert cache.load(KEYS[0]) is None and not path.exists()
    store(cache, KEYS[1])
    os.replace(cache.path(KEYS[1]), path)
    assert cache.load(KEYS[0]) is None and not path.exists()


def test_pieces_that_break_off_leave_nothing(tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path, 1 << 20)
    shapes = {"logits": (torch.float32, (4, 8))}

    def breaking() -> Iterator[Tensor]:
        yield torch.zeros(1, 8)
        raise RuntimeError("the model ends here")

    with pytest.raises(RuntimeError):
        cache.store(KEYS[0], shapes, breaking())
    with pytest.raises(ShapeError, match="128 bytes"):
        cache.store(KEYS[0], shapes, [torch.zeros(3, 8)])
    assert list(tmp_path.iterdir()) == []


def test_abandoned_partial_files_are_swept(tmp_path: Path) -> None:
    old, new = tmp_path / ".a.partial", tmp_path / ".b.partial"
    for path, age in ((old, 2 * 86400), (new, 60)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    store(GoldenCache(tmp_path, 1 << 20), KEYS[0])
    assert not old.exists() and new.exists()


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (folder / name).write_bytes(bytes(range(256)) * 1000)
        os.utime(folder / name, (time.time() - 100,) * 2)
    return folder


def test_weights_id_sees_every_byte_and_hashes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, folder = GoldenCache(tmp_path / "cache", 1 << 20), checkpoint(tmp_path / "model")
    first = cache.weights_id(folder)
    with monkeypatch.context() as patch:
        patch.setattr(golden.hashlib, "file_digest", None)  # nothing is read again
        assert cache.weights_id(folder) == first
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert cache.weights_id(copy) == first
    for change in (1, 128_000, 255_999):
        path = folder / "model-2.safetensors"
        content = bytearray(path.read_bytes())
        content[change] ^= 1
        path.write_bytes(content)
        changed = cache.weights_id(folder)
        assert changed != first
        first = changed
    (folder / "config.json").write_text(json.dumps({"hidden_size": 16, "model_type": "llama"}))
    assert cache.weights_id(folder) != first


def test_weights_rewritten_under_their_old_time_are_seen(tmp_path: Path) -> None:
    """As `rsync --inplace -t` and `touch -r` leave a file: same size, inode and time of modification."""
    cache = GoldenCache(tmp_path / "cache")
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights 1")
    (tmp_path / "config.json").write_text("{}")
    os.utime(file, (1e9, 1e9))
    before = cache.weights_id(tmp_path)
    assert cache.weights_id(tmp_path) == before
    with file.open("r+b") as stream:
        stream.write(b"weights 2")
    os.utime(file, (1e9, 1e9))
    assert cache.weights_id(tmp_path) != before


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path) -> None:
    cache, folder = GoldenCache(tmp_path / "cache", 1 << 20), checkpoint(tmp_path / "model")
    path = folder / "model-1.safetensors"
    path.write_bytes(b"a" * 100)
    first, stat = cache.weights_id(folder), path.stat()
    path.write_bytes(b"b" * 100)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # within the clock's grain
    assert cache.weights_id(folder) != first


def test_weights_id_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors file"):
        GoldenCache(tmp_path, 1 << 20).weights_id(tmp_path)
    folder = checkpoint(tmp_path / "model")
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError):
        GoldenCache(tmp_path, 1 << 20).weights_id(folder)


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_GIB", "3")
    cache = GoldenCache()
    assert cache.folder == tmp_path / "here" and cache.limit_bytes == 3 << 30
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "neuron-onboard" / "goldens"
    monkeypatch.setenv("VLLM_NEURON_GOLDEN_CACHE_GIB", "some")
    with pytest.raises(ConfigError, match="VLLM_NEURON_GOLDEN_CACHE_GIB"):
        GoldenCache()
