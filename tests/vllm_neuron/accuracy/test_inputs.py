"""Checks of what both sides run: ids, tokenizers, vocabularies, prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tokenizer import save_tokenizer
from vllm_neuron.accuracy.inputs import check_ids, check_prompt, check_tokenizers, check_vocabulary, tokenizer_id
from vllm_neuron.errors import CheckpointError

IDS = [1, 40, 41, 42, 43]


@pytest.mark.parametrize(
    ("seen", "at", "why"),
    [
        (IDS[1:], 0, "a BOS on one side only"),
        ([1, *IDS], 1, "id 1 twice at the start"),
        ([1, 90, 91, *IDS[1:], 92], 1, "a chat template on one side only"),
        ([90, 91, *IDS, 92], 0, "2 ids before and 1 behind: a chat template"),
        (IDS[:3], 3, "2 ids more at the end"),
        ([1, 40, 99, 42, 43], 2, ""),
        ([], 0, "the target ran nothing"),
    ],
)
def test_unlike_ids_are_refused_with_both_lists(seen: list[int], at: int, why: str) -> None:
    found = check_ids(IDS, seen)
    assert found is not None and found.verdict == f"refused: prompt ids differ at {at}"
    assert f"reference ran {IDS}" in found.notes and f"target ran {seen}" in found.notes
    assert why in found.notes[0]


@given(st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(0, 9), max_size=12))
def test_only_equal_ids_pass(asked: list[int], seen: list[int]) -> None:
    found = check_ids(asked, seen)
    assert (found is None) == (asked == seen)
    if found is not None:
        at = int(found.verdict.rpartition(" ")[2])
        assert asked[:at] == seen[:at] and asked[at : at + 1] != seen[at : at + 1]


def test_a_partial_run_may_be_shorter_but_not_other() -> None:
    assert check_ids(IDS, IDS[:2], partial=True) is None
    assert check_ids(IDS, [2], partial=True) is not None


def test_long_lists_are_cut() -> None:
    found = check_ids(range(500), range(1, 500))
    assert found is not None and "... 500 ids]" in found.notes[1]


def test_tokenizer_id_is_of_the_content(tmp_path: Path) -> None:
    assert tokenizer_id(tmp_path) is None
    save_tokenizer(tmp_path)
    first = tokenizer_id(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=7))
    assert tokenizer_id(tmp_path) == first
    content["model"]["vocab"]["unheard"] = 319
    path.write_text(json.dumps(content))
    other = tokenizer_id(tmp_path)
    assert other != first
    refusal = check_tokenizers(first, other)
    assert refusal is not None and refusal.verdict == "refused: the tokenizers differ"
    assert check_tokenizers(first, None) is None and check_tokenizers(first, first) is None
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        tokenizer_id(tmp_path)


def test_H5_a_narrower_target_is_refused() -> None:
    assert check_vocabulary(10, 12) is None
    refusal = check_vocabulary(10, 9)
    assert refusal is not None and "vocabulary of 9, the reference of 10" in refusal.verdict


def test_prompts() -> None:
    assert check_prompt(IDS, 4, 100) is None
    for ids, steps, words in (
        ([], 0, "empty"),
        ([1, 100], 0, "id 100 at 1 is outside"),
        ([1, -1], 0, "id -1 at 1"),
        ([1], 1, "at least one has to be prefilled"),
    ):
        refusal = check_prompt(ids, steps, 100)
        assert refusal is not None and words in refusal.verdict
