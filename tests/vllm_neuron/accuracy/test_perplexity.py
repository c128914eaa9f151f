"""Perplexity of a text: windows, losses, verdicts."""

from __future__ import annotations

import math

import pytest
import torch

from tests.vllm_neuron.accuracy.test_tasks import Source, side  # noqa: F401
from vllm_neuron.accuracy.perplexity import Losses, Text, judge, losses, read_text
from vllm_neuron.accuracy.tasks.thresholds import PerplexityThreshold
from vllm_neuron.errors import ConfigError, NonFiniteError

WORDS = "once upon a time there was a model, and the quick brown fox jumps over the lazy dog. " * 3


@pytest.mark.parametrize("prefix", [(), (1,)])
@pytest.mark.parametrize(
    ("count", "window", "stride"), [(50, 16, 4), (16, 16, 8), (5, 16, 8), (33, 16, 15), (2, 16, 1)]
)
def test_each_token_is_predicted_once(prefix, count, window, stride):
    text = Text("t", tuple(range(100, 100 + count)), prefix, window, stride)
    predicted = []
    for ids, new in text.windows():
        assert len(ids) <= window and ids[: len(prefix)] == prefix
        assert new >= 1 and len(ids) - new >= 1
        predicted += ids[len(ids) - new :]
    assert predicted == list(text.ids[0 if prefix else 1 :]) and len(predicted) == text.scored


@pytest.mark.parametrize("top", [None, 5])
def test_losses_equal_transformers(side, tmp_path, top):  # noqa: F811
    model, tokenizer = side
    (tmp_path / "a.txt").write_text(WORDS)
    text = read_text(tmp_path / "a.txt", tokenizer, max_length=512)
    assert text.prefix == (1,)
    found = losses(Source(model, top=top), text)
    ids = torch.tensor([[*text.prefix, *text.ids]])
    with torch.no_grad():
        assert found.mean == pytest.approx(float(model(ids, labels=ids).loss), rel=1e-5)


def test_windows_of_a_short_model(side, tmp_path):  # noqa: F811
    model, tokenizer = side
    (tmp_path / "a.txt").write_text(WORDS)
    told = []
    text = read_text(tmp_path / "a.txt", tokenizer, max_length=20)
    found = losses(Source(model), text, progress=lambda done, total: told.append((done, total)))
    assert text.window == 20 and text.stride == 9 and len(found.nats_T) == text.scored
    assert told[-1] == (text.scored, text.scored) and len(told) > 5


def test_ending_early_keeps_what_was_scored(side, tmp_path):  # noqa: F811
    model, tokenizer = side
    (tmp_path / "a.txt").write_text(WORDS)
    text = read_text(tmp_path / "a.txt", tokenizer, max_length=20)
    whole, cut = losses(Source(model), text), losses(Source(model, dies_after=3), text)
    assert 0 < len(cut.nats_T) < len(whole.nats_T) and torch.equal(cut.nats_T, whole.nats_T[: len(cut.nats_T)])
    result = judge(text, cut, whole, whole, PerplexityThreshold())
    assert result.passed and result.partial and result.items == len(cut.nats_T) and "gone" in " ".join(result.notes)
    assert (
        judge(text, losses(Source(model, dies_after=0), text), whole, None, PerplexityThreshold()).outcome == "not run"
    )


def test_verdict_by_the_mean_of_the_differences():
    torch.manual_seed(0)
    text = Text("t", tuple(range(401)), (), 512, 256)
    reference = Losses(torch.rand(400, dtype=torch.float64) + 2)
    noise = torch.randn(400, dtype=torch.float64)

    def verdict(shift, size):
        return judge(
            text,
            Losses(reference.nats_T + shift + size * (noise - noise.mean())),
            reference,
            None,
            PerplexityThreshold(),
        )

    assert verdict(0.005, 0.01).passed and verdict(0.0, 1.0).passed and verdict(-0.1, 0.01).passed
    assert not verdict(0.02, 0.01).passed and not verdict(0.5, 1.0).passed
    assert verdict(0.05, 1.0).passed  # within the error of the mean
    assert verdict(0.02, 0.01).score == pytest.approx(reference.mean + 0.02)


def test_refusals(side, tmp_path):  # noqa: F811
    model, tokenizer = side
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    for name in ("empty.txt", "bytes.txt", "missing.txt"):
        with pytest.raises(ConfigError, match="--text"):
            read_text(tmp_path / name, tokenizer, max_length=64)
    (tmp_path / "a.txt").write_text(WORDS)
    with pytest.raises(NonFiniteError):
        losses(Source(model, change=lambda x: x * math.inf), read_text(tmp_path / "a.txt", tokenizer, max_length=64))
