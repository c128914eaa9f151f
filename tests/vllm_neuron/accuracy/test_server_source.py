"""A server as a source: what is asked, what is refused, what happens when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_neuron.accuracy.fake_server import VOCAB, FakeServer, encode, row
from vllm_neuron.accuracy.http_json import Endpoint, NoAnswerError
from vllm_neuron.accuracy.server import connect
from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.errors import ConfigError, UnsupportedError


def tokenizer(text: str) -> dict[str, list[int]]:
    return {"input_ids": encode(text)}


def source(server: FakeServer, **options: Any) -> Any:
    return connect(server.url, **{"tokenizer": tokenizer, "tokenizer_id": None, "vocab_size": VOCAB, **options})


def choice_changed(**changes: Any) -> Any:
    def change(path: str, document: Any) -> Any:
        if path == "/v1/completions" and "choices" in document:
            return {"choices": [document["choices"][0] | changes]}
        return document

    return change


def test_rows_of_prefill_and_of_decoding():
    with FakeServer() as server:
        found = source(server)
        assert isinstance(found, LogitsSource) and "canned" in found.name and found.max_model_len == 64
        ids = [7, 8, 9, 9, 3, 4]  # what it picks after positions 3 and 4, so decoding goes on
        del server.asked[:]
        scored = found.score(ids, 2)
        assert [body["prompt"] for body in server.asked] == [[7, 8, 9, 9]]
        assert server.asked[0]["max_tokens"] == 3 and server.asked[0]["temperature"] == 0
        assert scored.seen_ids == tuple(ids) and not scored.partial and scored.logits_TV is None
        assert scored.top == (*(row(t, gold=ids[t + 1]) for t in range(3)), *(row(t) for t in range(3, 6)))
        assert all("prefilled" not in note for note in scored.notes)


def test_another_token_than_the_gold_is_asked_again_behind_it():
    with FakeServer() as server:
        found = source(server)
        del server.asked[:]
        ids = [7, 8, 1, 40, 4, 41]
        scored = found.score(ids, 4)
        assert [len(body["prompt"]) for body in server.asked] == [2, 4, 5, 6]
        assert all("prompt_logprobs" not in body for body in server.asked[1:])
        assert len(scored.top) == 6 and scored.seen_ids == tuple(ids)
        assert "3 of 4 decoded positions were prefilled" in scored.notes[1]


def test_one_token_alone():
    with FakeServer() as server:
        scored = source(server).score([7], 0)
        assert scored.top == (row(0),) and scored.seen_ids == (7,)


@pytest.mark.parametrize("kind", ["dropped", "half", "status", "no json", "timeout"])
def test_a_server_that_ends_half_way_leaves_a_partial_result(kind):
    def change(path: str, document: Any) -> Any:
        if path != "/v1/completions" or len(server.asked) < 5:
            return document
        if kind == "dropped":
            raise ConnectionError
        if kind == "timeout":
            server.wait = 1.2
        return {"half": b'{"choices": [', "status": 500, "no json": b"<html>", "timeout": document}[kind]

    with FakeServer(change) as server:
        found = source(server, timeout=0.4)
        scored = found.score([7, 8, 1, 40, 4, 41], 4)
        if kind == "timeout":
            # The first late answer is the one after it.
            assert scored.partial is False or len(scored.top) >= 3
            scored = found.score([7, 8, 1, 40, 4, 41], 4)
        assert scored.partial and len(scored.top) < 6 and len(scored.seen_ids) == len(scored.top)
        assert "the server ended" in scored.notes[-1]
        count = len(server.asked)
        again = found.score([7, 8], 0)
        assert again.partial and again.top == () and len(server.asked) == count
        assert found.generate([7], 3, []) == ()


def test_other_ids_than_asked_for_are_told():
    """H1: a server that puts another beginning in front."""
    with FakeServer(choice_changed(prompt_token_ids=[1, 7, 8, 9])) as server:
        scored = source(server).score([7, 8, 9], 0)
        assert scored.seen_ids == (1, 7, 8, 9) and scored.top == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": None}, "returns token ids"),
        ({"prompt_logprobs": None}, "log-probabilities of the prompt"),
        ({"logprobs": None}, "log-probabilities of the tokens"),
    ],
)
def test_a_server_that_can_not_be_used_is_refused(changes, message):
    def change(path: str, document: Any) -> Any:
        return choice_changed(**changes)(path, document) if len(server.asked) > 2 else document

    with FakeServer(change) as server, pytest.raises(UnsupportedError, match=message):
        source(server).score([7, 8, 9], 0)


def test_an_unlike_tokenizer_is_refused_with_both_lists():
    with FakeServer() as server, pytest.raises(ConfigError, match=r"got 'ids \[1, .*the reference's ids \[1, 1, "):
        source(server, tokenizer=lambda text: {"input_ids": [1, *encode(text)]})


@pytest.mark.parametrize("size", [VOCAB - 1, VOCAB + 1])
def test_an_unlike_vocabulary_is_refused(size):
    with FakeServer() as server, pytest.raises(ConfigError, match="--server vocabulary"):
        source(server, vocab_size=size)


def test_servers_that_are_none():
    with pytest.raises(NoAnswerError, match=r"127\.0\.0\.1:9"):
        connect("http://127.0.0.1:9", tokenizer=tokenizer, tokenizer_id=None, vocab_size=VOCAB, timeout=5)
    models = [{"id": name, "root": name, "max_model_len": 8} for name in "ab"]
    for document, message in (({"data": models}, "one model"), ({"hello": 1}, "vLLM server")):
        with (
            FakeServer(lambda path, _, d=document: d) as server,
            pytest.raises((ConfigError, UnsupportedError), match=message),
        ):
            source(server)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999999", "", "http://[x"])
def test_urls_that_are_none(url):
    with pytest.raises(ConfigError, match="--server"):
        Endpoint.parse(url, timeout=1)


def test_urls_with_and_without_the_version():
    assert {
        Endpoint.parse(u, timeout=1).url for u in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")
    } == {"http://h:1"}


def test_generation_leaves_the_stop_token_out():
    with FakeServer() as server:
        found = source(server)
        assert found.generate([7, 8], 3, [2]) == (1, 2, 3)
        assert found.generate([7, 8], 3, [3]) == (1, 2)
