"""Sampling parameters of a real engine do what they say."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from tests.vllm_neuron.vllm.conftest import Checkpoint, prompts_of, tokens_of

PROMPTS = prompts_of(5, 60, 31, seed=4)
MANY = 300


@pytest.fixture(scope="module")
def llama(checkpoint: Any) -> Checkpoint:
    return checkpoint("llama")


@pytest.fixture(scope="module")
def whole(engine: Any) -> Any:
    return engine("llama", enable_prefix_caching=False, max_num_seqs=64, max_logprobs=320)


@pytest.fixture(scope="module")
def chunked(engine: Any) -> Any:
    return engine("llama", enable_prefix_caching=False, max_num_batched_tokens=16, max_logprobs=320)


def ask(llm: Any, params: Any, prompts: list[list[int]] = PROMPTS) -> list[Any]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)


def first_tokens(llm: Any, **params: Any) -> torch.Tensor:
    """Frequency [V] of the first token over many samples."""
    out = ask(llm, SamplingParams(n=MANY, max_tokens=1, seed=5, **params), PROMPTS[:1])
    tokens = torch.tensor([completion.token_ids[0] for completion in out[0].outputs])
    assert tokens.shape == (MANY,)
    return torch.bincount(tokens, minlength=320)


# -- randomness -------------------------------------------------------------------------------------------------------


def test_seeds_reproduce_alone_in_a_batch_and_in_chunks(whole: Any, chunked: Any) -> None:
    params = [SamplingParams(temperature=1.0, seed=10 + i, max_tokens=12, ignore_eos=True) for i in range(3)]
    batch = tokens_of(ask(whole, params))
    assert tokens_of(ask(whole, params)) == batch
    assert [tokens_of(ask(whole, params[i], [PROMPTS[i]]))[0] for i in range(3)] == batch
    assert tokens_of(ask(chunked, params)) == batch
    others = [SamplingParams(temperature=1.0, seed=20 + i, max_tokens=12, ignore_eos=True) for i in range(3)]
    assert tokens_of(ask(whole, others)) != batch


def test_n_gives_different_samples_and_the_same_again(whole: Any) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
    first, again = ([list(c.token_ids) for c in ask(whole, params, PROMPTS[:1])[0].outputs] for _ in range(2))
    assert first == again and len({tuple(tokens) for tokens in first}) == 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(whole: Any, llama: Checkpoint, temperature: float) -> None:
    found = first_tokens(whole, temperature=temperature).float() / MANY
    expected = torch.softmax(llama.logits(PROMPTS[0])[-1] / temperature, -1)
    likely = expected.topk(10).indices
    noise = (expected[likely] * (1 - expected[likely]) / MANY).sqrt()
    assert ((found - expected)[likely].abs() <= 4.5 * noise).all()


def test_top_k(whole: Any, llama: Checkpoint) -> None:
    allowed = set(llama.logits(PROMPTS[0])[-1].topk(5).indices.tolist())
    assert set(first_tokens(whole, top_k=5, temperature=2.0).nonzero()[:, 0].tolist()) == allowed


def test_top_p(whole: Any, llama: Checkpoint) -> None:
    shares, order = torch.softmax(llama.logits(PROMPTS[0])[-1], -1).sort(descending=True)
    kept = int((shares.cumsum(-1) - shares < 0.3).sum())
    seen = first_tokens(whole, top_p=0.3).nonzero()[:, 0].tolist()
    assert set(seen) <= set(order[:kept].tolist()) and len(seen) > 1


def test_min_p(whole: Any, llama: Checkpoint) -> None:
    shares = torch.softmax(llama.logits(PROMPTS[0])[-1], -1)
    allowed = set((shares >= 0.7 * shares.max()).nonzero()[:, 0].tolist())
    seen = set(first_tokens(whole, min_p=0.7).nonzero()[:, 0].tolist())
    assert seen <= allowed and len(seen) > 1 and len(allowed) < 30


# -- changes to the logits --------------------------------------------------------------------------------------------


def greedy_by_hand(model: Checkpoint, prompt: list[int], steps: int, change: Any) -> list[int]:
    """Greedy tokens of the reference when ``change(logits, tokens so far)`` edits the logits."""
    tokens: list[int] = []
    for _ in range(steps):
        tokens.append(int(change(model.logits([*prompt, *tokens])[-1].clone(), tokens).argmax()))
    return tokens


def test_penalties(whole: Any, llama: Checkpoint) -> None:
    prompt = PROMPTS[1]

    def change(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        seen = torch.tensor(sorted({*prompt, *tokens}))
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / 1.3, logits[seen] * 1.3)
        counts = torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=320)
        return logits - 0.4 * counts - 0.5 * (counts > 0)

    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, repetition_penalty=1.3,
                            frequency_penalty=0.4, presence_penalty=0.5)  # fmt: skip
    beside = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    expected = greedy_by_hand(llama, prompt, 16, change)
    found = tokens_of(ask(whole, [beside, params, beside]))
    assert found[1] == expected
    llama.assert_greedy(PROMPTS[0], found[0])
    assert expected != greedy_by_hand(llama, prompt, 16, lambda logits, _: logits)


def test_logit_bias(whole: Any, llama: Checkpoint) -> None:
    found = tokens_of(ask(whole, SamplingParams(temperature=0, max_tokens=4, logit_bias={7: 100.0})))
    assert found == [[7] * 4] * 3


def test_allowed_token_ids(whole: Any, llama: Checkpoint) -> None:
    allowed = [5, 90, 91, 200]
    mask = torch.full((320,), -torch.inf)
    mask[allowed] = 0
    found = tokens_of(ask(whole, SamplingParams(temperature=0, max_tokens=6, allowed_token_ids=allowed)))
    assert found == [greedy_by_hand(llama, p, 6, lambda logits, _: logits + mask) for p in PROMPTS]


def test_bad_words(whole: Any, llama: Checkpoint) -> None:
    letters = whole.get_tokenizer().convert_tokens_to_ids(list("abcdefghij"))
    common = {"temperature": 0, "max_tokens": 6, "allowed_token_ids": letters}
    plain = ask(whole, SamplingParams(**common), PROMPTS[1:2])[0].outputs[0]
    found = ask(whole, SamplingParams(**common, bad_words=[plain.text[0]]), PROMPTS[1:2])[0].outputs[0]
    assert plain.text[0] not in found.text and set(found.token_ids) <= set(letters)


def test_min_tokens_holds_the_end_back(whole: Any) -> None:
    """With a bias the end token comes first; min_tokens keeps it away for so many tokens."""
    bias = {2: 100.0}
    free = ask(whole, SamplingParams(temperature=0, max_tokens=9, logit_bias=bias), PROMPTS[:1])[0].outputs[0]
    held = ask(whole, SamplingParams(temperature=0, max_tokens=9, logit_bias=bias, min_tokens=5), PROMPTS[:1])
    assert list(free.token_ids) == [2] and free.finish_reason == "stop"
    assert len(held[0].outputs[0].token_ids) == 6 and 2 not in held[0].outputs[0].token_ids[:5]


# -- log probabilities ------------------------------------------------------------------------------------------------


def test_logprobs(whole: Any, llama: Checkpoint) -> None:
    for prompt, output in zip(PROMPTS, ask(whole, SamplingParams(temperature=0, max_tokens=5, logprobs=4,
                                                                 ignore_eos=True)), strict=True):  # fmt: skip
        tokens = list(output.outputs[0].token_ids)
        expected = llama.logits([*prompt, *tokens]).log_softmax(-1)[len(prompt) - 1 : -1]
        for row, found in zip(expected, output.outputs[0].logprobs, strict=True):
            assert set(row.topk(4).indices.tolist()) <= set(found)
            for token, entry in found.items():
                assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
                assert entry.rank == int((row > row[token]).sum()) + 1


@pytest.mark.parametrize("count", [0, 3, -1])
def test_prompt_logprobs_whole_and_in_chunks(whole: Any, chunked: Any, llama: Checkpoint, count: int) -> None:
    prompts = [*PROMPTS, prompts_of(1)[0], prompts_of(17)[0]]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=count, ignore_eos=True)
    for llm in (whole, chunked):
        for prompt, output in zip(prompts, ask(llm, params, prompts), strict=True):
            llama.assert_greedy(prompt, list(output.outputs[0].token_ids))
            assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
            scores = llama.logits(prompt).log_softmax(-1)
            for place, found in enumerate(output.prompt_logprobs[1:]):
                row = scores[place]
                best = row.topk(320 if count == -1 else count).indices.tolist()
                assert set(found) == {*best, prompt[place + 1]}
                for token, entry in found.items():
                    assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)


# -- text -------------------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
          "required": ["ok", "kind"], "additionalProperties": False}  # fmt: skip
GRAMMAR = 'root ::= "set " [a-z] " to " [0-9] [0-9]?'


def structured(llm: Any, **constraint: Any) -> list[str]:
    params = SamplingParams(temperature=1.0, seed=2, max_tokens=120,
                            structured_outputs=StructuredOutputsParams(**constraint))  # fmt: skip
    plain = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    out = llm.generate(["once upon a time", "the fox", "a model " * 9], [params, plain, params], use_tqdm=False)
    assert len(out[1].outputs[0].token_ids) == 6
    assert all(out[i].outputs[0].finish_reason == "stop" for i in (0, 2))
    return [out[i].outputs[0].text for i in (0, 2)]


@pytest.mark.parametrize("chunks", [False, True])
def test_json_schema(whole: Any, chunked: Any, chunks: bool) -> None:
    for text in structured(chunked if chunks else whole, json=SCHEMA, disable_any_whitespace=True):
        value = json.loads(text)
        assert isinstance(value["ok"], bool) and value["kind"] in ("a", "b") and len(value) == 2


def test_regex(whole: Any) -> None:
    assert all(re.fullmatch(r"[0-9]{3}-[xyz]{2}", text) for text in structured(whole, regex=r"[0-9]{3}-[xyz]{2}"))


def test_choice(whole: Any) -> None:
    assert set(structured(whole, choice=["alpha", "beta"])) <= {"alpha", "beta"}


def test_grammar(whole: Any) -> None:
    assert all(re.fullmatch(r"set [a-z] to [0-9]{1,2}", text) for text in structured(whole, grammar=GRAMMAR))


def test_stop_string_ends_the_text_before_it(whole: Any) -> None:
    pattern = SamplingParams(temperature=0, max_tokens=40, stop=["6"],
                             structured_outputs=StructuredOutputsParams(choice=["123456789"]))  # fmt: skip
    output = whole.generate(["count"], pattern, use_tqdm=False)[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("12345", "stop", "6")
