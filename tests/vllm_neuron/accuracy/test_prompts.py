"""The default prompts reach what the model has; files of prompts are read strictly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hf import MODELS
from vllm_neuron.accuracy.prompts import Prompt, check_ids, default_prompts, log_book, read_prompts
from vllm_neuron.accuracy.reach import Reach
from vllm_neuron.errors import ConfigError


def encode(text: str) -> list[int]:
    """A BOS and one id for three bytes, about as dense as real tokenizers."""
    return [1, *(3 + sum(text.encode()[i : i + 3]) % 300 for i in range(0, len(text.encode()), 3))]


@settings(max_examples=40)
@given(
    st.lists(st.integers(16, 900) | st.sampled_from([128, 256, 512]), max_size=2, unique=True),
    st.none() | st.integers(64, 900),
    st.none() | st.integers(40, 5000),
    st.integers(48, 1200),
)
def test_default_prompts_reach_all_that_fits(
    windows: list[int], original: int | None, longest: int | None, most: int
) -> None:
    reach = Reach(tuple(sorted(windows)), original, longest=longest)
    prompts = default_prompts(encode, reach, most_tokens=most)
    room = min(most, longest or most)
    assert all(0 < len(p.ids) <= room and 0 <= p.steps < len(p.ids) for p in prompts)
    assert len({p.name for p in prompts}) == len(prompts)
    missing = reach.missing(reach.covered(len(p.ids), p.steps) for p in prompts)
    wanted = {"decode", "bucket edge"} | ({"position > 256"} if room >= 280 else set())
    if windows and max(windows) + 24 <= room:
        wanted |= {"window (prefill)", "window (decode)"}
    if original and original + 24 <= room:
        wanted.add("original context")
    wanted -= {"bucket edge"} if room < 88 else set()
    assert not wanted & set(missing)
    if "window (prefill)" in wanted:
        assert "window" not in missing


def test_the_decode_over_a_border_shares_its_ids_with_the_prefill_past_it() -> None:
    prompts = {p.name: p for p in default_prompts(encode, Reach((64,)), most_tokens=1024)}
    over, past = prompts["decode over position 256"], prompts["past position 256"]
    assert over.ids == past.ids and over.steps > past.steps
    assert len(over.ids) - over.steps <= 256 < len(past.ids) - past.steps
    window = prompts["decode over window 64"]
    assert len(window.ids) - window.steps <= 64 < len(window.ids)


def test_a_larger_border_spares_the_one_at_256() -> None:
    names = [p.name for p in default_prompts(encode, Reach((512,)))]
    assert names[-2:] == ["decode over window 512", "past window 512"] and "past position 256" not in names
    assert "decode over position 256" not in names


def test_default_prompts_are_various() -> None:
    prompts = default_prompts(encode, Reach())
    lengths = sorted(len(p.ids) for p in prompts)
    assert lengths[0] < 16 and lengths[-1] > 256 and len(set(lengths)) >= 5
    lines = log_book(500).splitlines()
    assert len(set(lines)) == 500


def test_H7_short_prompts_are_labelled() -> None:
    reach = Reach((64,))
    assert reach.missing([reach.covered(10, 0)] * 3) == ("window", "position > 256", "bucket edge", "decode")
    assert ", ".join(reach.missing([reach.covered(10, 2)])) == "window, position > 256, bucket edge"
    assert reach.missing([reach.covered(300, 0)]) == ("window (decode)", "bucket edge", "decode")
    assert reach.missing([reach.covered(300, 240), reach.covered(300, 8)]) == ()


def test_reach_is_read_from_configs() -> None:
    assert Reach.of_config(MODELS["gemma3"].config()).windows == (40,)
    assert Reach.of_config(MODELS["llama"].config()) == Reach(longest=512)
    assert Reach.of_config(MODELS["llama3-rope"].config()).original_context == 64
    qwen = SimpleNamespace(sliding_window=128, use_sliding_window=False)
    assert Reach.of_config(qwen).windows == ()
    assert Reach.of_config(SimpleNamespace(sliding_window=4096, attention_chunk_size=8192)).windows == (4096, 8192)
    full = SimpleNamespace(sliding_window=4096, layer_types=["full_attention"])
    assert Reach.of_config(full).windows == ()


def test_files_of_prompts(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("One prompt.\n\nAnother, longer prompt of a few more words than that.\n")
    found = read_prompts(text, encode, steps=4)
    assert [(p.name, p.steps) for p in found] == [("mine.txt:1", 4), ("mine.txt:3", 4)]
    lines = tmp_path / "mine.jsonl"
    lines.write_text('{"text": "One prompt.", "name": "a", "steps": 0}\n{"ids": [1, 2, 3], "name": "b"}\n')
    a, b = read_prompts(lines, encode)
    assert (a.name, a.steps, a.ids) == ("a", 0, tuple(encode("One prompt.")))
    assert (b.name, b.steps, b.ids) == ("b", 2, (1, 2, 3))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"txet": "x"}', r"p\.jsonl:1: txet.*Did you mean 'text'"),
        ("not json", r"p\.jsonl:1.*a JSON object"),
        ("[1]", "a JSON object with 'text' or 'ids'"),
        ('{"text": "x", "ids": [1]}', "one of 'text' and 'ids'"),
        ("{}", "one of 'text' and 'ids'"),
        ('{"ids": [1, -2]}', "a list of token ids"),
        ('{"ids": [1, true]}', "a list of token ids"),
        ('{"ids": []}', "at least one token"),
        ('{"text": 3}', "a text"),
        ('{"ids": [1, 2], "steps": 2}', "0 to 1"),
        ('{"ids": [1, 2], "name": ""}', "name"),
        ('{"ids": [1], "name": "a"}\n{"ids": [1], "name": "a"}', "each name once"),
        ("", "at least one prompt"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match=words):
        read_prompts(path, encode)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="readable"):
        read_prompts(tmp_path / "absent.txt", encode)
    (tmp_path / "p.csv").write_text("x")
    with pytest.raises(ConfigError, match=r"a \.txt file"):
        read_prompts(tmp_path / "p.csv", encode)
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompts(tmp_path / "p.txt", encode)
    (tmp_path / "q.txt").write_text("x\n")
    with pytest.raises(ConfigError, match="at least one token"):
        read_prompts(tmp_path / "q.txt", lambda text: [])


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    check_ids([Prompt("fits", (1, 319))], 320)
    with pytest.raises(ConfigError, match=r"prompt odd: got 320, expected ids below 320"):
        check_ids([Prompt("fits", (1, 2)), Prompt("odd", (1, 320))], 320)
