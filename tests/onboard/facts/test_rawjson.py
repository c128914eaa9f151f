"""Files that are not a config: every one is refused by name, at once, without a traceback."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from onboard.facts import rawjson
from onboard.facts.api import load
from vllm_neuron.errors import ConfigError


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    start = time.perf_counter()
    with pytest.raises(ConfigError, match="104857600 bytes"):
        load(str(tmp_path))
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "JSON"),
        (b"not json", "line 1"),
        (b'{"a": 1,}', "line 1"),
        (b'{"a": 1} trailing', "JSON"),
        (b"[1, 2]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "levels"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "levels"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "hidden_size: got 2, expected one value"),
        (b'{"a": {"b": 1, "b": 2}}', "^b: got 2"),
        (b'{"model_type": "\\ud800"}', "Unicode"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "sensible length"),
    ],
)
def test_damaged_content(data: bytes, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rawjson.parse(data, "config.json")


def test_what_real_files_hold_is_let_through() -> None:
    raw = rawjson.parse('\ufeff{"limit": [0.0, Infinity], "name": "modelé", "a": 1, "a": 1}'.encode(), "config.json")
    assert raw["name"] == "modelé"
    assert rawjson.parse(b'{"x": "\\ud83d\\ude00"}', "config.json")["x"] == "\U0001f600"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e-6", '"1e-6"', "true", "[1]"])
def test_numbers_that_are_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": ' + value + "}")
    with pytest.raises(ConfigError, match="rms_norm_eps") as caught:
        load(str(tmp_path))
    assert caught.value.field == "rms_norm_eps"


@pytest.mark.parametrize("value", [-1, 0, 1.5, "64", True, 2**60, [64], {}])
def test_sizes_that_are_none(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": value}))
    with pytest.raises(ConfigError, match="hidden_size"):
        load(str(tmp_path))


def test_a_directory_or_an_unreadable_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ConfigError, match="readable file"):
        rawjson.read(tmp_path / "config.json")
