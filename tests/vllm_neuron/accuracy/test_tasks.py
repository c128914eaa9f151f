"""lm_eval on sources of logits: the shipped task, verdicts, what ends early, what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch

from tests.support.hf import MODELS
from tests.support.tokenizer import save_tokenizer
from vllm_neuron.accuracy.sources import Scored
from vllm_neuron.accuracy.tasks.harness import Item, Scores, Tasks
from vllm_neuron.accuracy.tasks.judge import judge, sign_test, standard_error
from vllm_neuron.accuracy.tasks.model import SourceLM
from vllm_neuron.accuracy.tasks.plain_facts.items import ITEMS
from vllm_neuron.accuracy.tasks.thresholds import TaskThreshold
from vllm_neuron.errors import CheckpointError, ConfigError, NonFiniteError, UnsupportedError

DOCUMENTS = [json.loads(line) for line in ITEMS.read_text().splitlines()]


class Source:
    """A tiny model of transformers; ``change`` may alter its logits, ``dies_after`` calls it gives nothing more."""

    name, dtype, tokenizer_id = "source", "float32", None

    def __init__(self, model, *, change=lambda logits: logits, dies_after=math.inf, top=None):
        self.model, self.change, self.dies_after, self.top = model, change, dies_after, top
        self.vocab_size = model.config.vocab_size
        self.calls: list[tuple[int, ...]] = []

    @torch.no_grad()
    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        self.calls.append(tuple(prompt_ids))
        if len(self.calls) > self.dies_after:
            return Scored(None, (), top=(), partial=True, notes=("the server ended: gone",))
        logits = self.change(self.model(torch.tensor([list(prompt_ids)])).logits[0].float())
        if self.top is None:
            return Scored(logits, tuple(prompt_ids))
        rows = []
        for t, row in enumerate(logits.log_softmax(-1)):
            best = row.topk(self.top).indices.tolist()
            after = [prompt_ids[t + 1]] if t + 1 < len(prompt_ids) else []
            rows.append({i: float(row[i]) for i in {*best, *after}})
        return Scored(None, tuple(prompt_ids), top=tuple(rows))


@pytest.fixture(scope="module")
def side(tmp_path_factory):
    """A tiny Llama and its tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tiny")
    model = MODELS["llama"].save(folder)
    save_tokenizer(folder)
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def tasks():
    return Tasks(["plain_facts"])


def run(tasks, side, source, **options):
    return tasks.run(source, side[1], max_length=128, metrics={}, **options)["plain_facts"]


def direct(model, tokenizer, document) -> int:
    """The likeliest answer, written down without lm_eval."""
    context = tokenizer(document["question"])["input_ids"]
    found = []
    for choice in document["choices"]:
        ids = tokenizer(f"{document['question']} {choice}")["input_ids"]
        rows = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        found.append(sum(float(rows[t - 1, ids[t]]) for t in range(len(context), len(ids))))
    return found.index(max(found))


def test_items_are_well_formed():
    assert len(DOCUMENTS) == 48
    for document in DOCUMENTS:
        assert len(set(document["choices"])) == 4 and 0 <= document["answer"] < 4
        assert all(text == text.strip() and text for text in (document["question"], *document["choices"]))
    assert {document["answer"] for document in DOCUMENTS} == {0, 1, 2, 3}


@torch.no_grad()
def test_answers_equal_a_direct_computation(tasks, side):
    told = []
    scores = run(tasks, side, Source(side[0]), limit=12, progress=lambda done, total: told.append((done, total)))
    expected = [direct(*side, document) for document in DOCUMENTS[:12]]
    assert [scores.items[i].answer for i in range(12)] == expected
    assert scores.score == sum(a == d["answer"] for a, d in zip(expected, DOCUMENTS, strict=False)) / 12
    assert told[-1] == (48, 48) and (scores.metric, scores.asked) == ("acc", 12)


def test_a_source_of_top_log_probabilities_gives_the_same_answers(tasks, side):
    whole, top = (run(tasks, side, Source(side[0], top=k), limit=8) for k in (None, 5))
    assert whole.items == top.items


def test_one_run_serves_all_answers_that_it_covers(tasks, side):
    source = Source(side[0])
    run(tasks, side, source, limit=4)
    assert len(source.calls) == len(set(source.calls)) <= 16


def test_ending_early_keeps_the_answered_items(tasks, side):
    scores = run(tasks, side, Source(side[0], dies_after=9), limit=8)
    assert 0 < len(scores.items) < 8 == scores.asked and "gone" in scores.notes[0]
    whole = run(tasks, side, Source(side[0]), limit=8)
    assert all(whole.items[i] == item for i, item in scores.items.items())
    result = judge(scores, whole, None, TaskThreshold())
    assert result.passed and result.partial and "as far as it was answered" in result.verdict
    nothing = judge(run(tasks, side, Source(side[0], dies_after=0), limit=4), whole, None, TaskThreshold())
    assert nothing.outcome == "not run" and nothing.score is None and "gone" in nothing.verdict


def test_logits_that_are_no_numbers(tasks, side):
    with pytest.raises(NonFiniteError, match="logits of source"):
        run(tasks, side, Source(side[0], change=lambda x: x * torch.nan), limit=1)


def test_rolling_windows_score_each_token_once(side):
    model, tokenizer = side
    ids = tokenizer("the quick brown fox jumps over the lazy dog " * 4, add_special_tokens=False)["input_ids"]
    lm = SourceLM(Source(model), tokenizer, max_length=20)
    request = type("Request", (), {"args": (tokenizer.decode(ids),), "task_name": "t", "doc_id": 0})
    (found,) = lm.loglikelihood_rolling([request])
    whole = [1, *ids]
    window = 19
    with torch.no_grad():
        expected = 0.0
        for t in range(1, len(whole)):
            chunk = (t - 1) // window
            # The last window keeps a full-sized context.
            begin = chunk * window if (chunk + 1) * window <= len(ids) else len(ids) - window
            seen = whole[begin : t + 1]
            expected += float(model(torch.tensor([seen])).logits[0, -2].log_softmax(-1)[whole[t]])
    assert found == pytest.approx(expected, rel=1e-4)


def test_generation_needs_a_source_that_generates(side):
    lm = SourceLM(Source(side[0]), side[1], max_length=64)
    request = type("Request", (), {"args": ("the fox", {"until": ["\n"]}), "task_name": "gsm8k", "doc_id": 0})
    with pytest.raises(UnsupportedError, match="--server"):
        lm.generate_until([request])


def test_generation_stops_at_the_first_stop_string(side):
    model, tokenizer = side

    class Fixed(Source):
        def generate(self, prompt_ids, max_tokens, stop_ids):
            self.asked = (len(prompt_ids), max_tokens, list(stop_ids))
            return tuple(tokenizer("a fox\nand a dog", add_special_tokens=False)["input_ids"])

    source = Fixed(model)
    lm = SourceLM(source, tokenizer, max_length=64)
    options = {"until": ["\n", "zzz"], "max_gen_toks": 30, "do_sample": False}
    request = type("Request", (), {"args": ("the fox " * 40, options), "task_name": "t", "doc_id": 0})
    assert lm.generate_until([request]) == ["a fox"]
    assert source.asked == (34, 30, [2]) and lm.shortened == 1
    request.args = ("x", {"temperature": 0.7, "do_sample": True})
    with pytest.raises(UnsupportedError, match="greedy"):
        lm.generate_until([request])


def test_unknown_tasks_and_metrics_are_refused_with_the_nearest_name(tasks, side):
    with pytest.raises(ConfigError, match="Did you mean 'plain_facts'"):
        Tasks(["plain_fact"])
    with pytest.raises(ConfigError, match="Did you mean 'acc'"):
        tasks.run(Source(side[0]), side[1], max_length=64, metrics={"plain_facts": "ac"}, limit=1)


def test_a_download_is_never_silent(monkeypatch):
    with pytest.raises(CheckpointError, match="--download"):
        Tasks(["arc_easy"])


def test_a_task_of_ones_own_by_its_file(tmp_path, side):
    (tmp_path / "own.yaml").write_text(
        "task: own\ncustom_dataset: !function data.load\ntest_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{q}}"\ndoc_to_choice: "{{c}}"\ndoc_to_target: a\nmetric_list: [{metric: acc}]\n'
    )
    (tmp_path / "data.py").write_text(
        "def load(**_):\n    from datasets import Dataset\n"
        '    return {"test": Dataset.from_list([{"q": "the quick", "c": ["fox", "dog"], "a": 0}])}\n'
    )
    tasks = Tasks([str(tmp_path / "own.yaml")])
    assert list(tasks) == ["own"]
    assert len(tasks.run(Source(side[0]), side[1], max_length=64, metrics={})["own"].items) == 1


def scores(values: str, notes: tuple[str, ...] = ()) -> Scores:
    """``"110."``: right, right, wrong, not answered."""
    items = {i: Item(float(v), v) for i, v in enumerate(values) if v != "."}
    mean = sum(item.value for item in items.values()) / max(1, len(items))
    return Scores("t", "acc", items, len(values), mean, True, notes)


@pytest.mark.parametrize(
    ("target", "reference", "limits", "passes"),
    [
        ("1" * 40, "1" * 40, TaskThreshold(), True),
        ("0" * 3 + "1" * 37, "1" * 40, TaskThreshold(), True),  # p = 0.125: chance
        ("0" * 6 + "1" * 34, "1" * 40, TaskThreshold(), False),  # p = 0.016
        ("0" * 6 + "1" * 34, "1" * 40, TaskThreshold(max_drop=0.15), True),
        ("0" * 6 + "1" * 34, "1" * 34 + "0" * 6, TaskThreshold(), True),  # as many better as worse
        ("1" * 40, "0" * 10 + "1" * 30, TaskThreshold(), True),
        ("1" * 20 + "0" * 20, "1" * 20 + "0" * 20, TaskThreshold(min_score=0.6), False),
        ("1" * 20 + "0" * 20, "1" * 20 + "0" * 20, TaskThreshold(min_score=0.5), True),
    ],
)
def test_verdicts_by_the_paired_difference(target, reference, limits, passes):
    result = judge(scores(target), scores(reference), scores(reference), limits)
    assert result.passed is passes
    assert result.items == 40 and result.agreement == sum(a == b for a, b in zip(target, reference, strict=True)) / 40
    assert "Hugging Face in bf16" in result.notes[-1]


def test_binomial_error_and_sign_test():
    assert standard_error([1.0] * 36 + [0.0] * 12) == pytest.approx(math.sqrt(0.75 * 0.25 / 48))
    assert standard_error([0.2, 0.4]) == pytest.approx(0.1) and standard_error([1.0]) is None
    assert sign_test(5, 0) == 1 / 32 and sign_test(0, 0) == 1.0 and sign_test(2, 1) == 0.5
