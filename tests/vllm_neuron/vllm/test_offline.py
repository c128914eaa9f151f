"""The engine as a source of logits: equal to transformers at every position, prefilled, decoded, alone, batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.vllm_neuron.vllm.conftest import prompts_of
from vllm_neuron.accuracy.side_by_side import Batching
from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.vllm.offline import EngineOptions, EngineSource
from vllm_neuron.vllm.rows import LogitsBuffer
from vllm_neuron.vllm.uninstalled import Uninstalled

# Prompt length -> decoded steps: whole prefill, most of it decoded, past Gemma's window of 40 in either way.
STEPS = {1: 0, 5: 4, 47: 0, 60: 30, 130: 20, 39: 3}
TINY: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "max_num_seqs": 4, "kv_cache_bytes": 1 << 24}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def source(name: str, checkpoint: Any, cpu_mode: None) -> Iterator[EngineSource]:
    with EngineSource(checkpoint(name).folder, EngineOptions(max_num_batched_tokens=48, **TINY)) as made:
        yield made


def assert_equal(logits_TV: torch.Tensor, expected_TV: torch.Tensor) -> None:
    errors = (logits_TV - expected_TV).norm(dim=-1) / expected_TV.norm(dim=-1)
    assert logits_TV.shape == expected_TV.shape and float(errors.max()) <= 1e-5, errors


def collected(source: EngineSource, prompts: list[tuple[list[int], int]]) -> tuple[list[torch.Tensor], list[Any]]:
    """Logits of each prompt, put together from the stream."""
    pieces: dict[int, list[torch.Tensor]] = {i: [] for i in range(len(prompts))}
    lengths = dict.fromkeys(pieces, 0)

    def on_rows(number: int, position: int, rows: torch.Tensor) -> None:
        assert position == lengths[number], "in order, without gaps"
        lengths[number] += rows.shape[0]
        pieces[number].append(rows.clone())

    scored = source.stream(prompts, on_rows)
    return [torch.cat(pieces[i]) for i in pieces], scored


def test_a_batch_equals_transformers_at_every_position(source: EngineSource, name: str, checkpoint: Any) -> None:
    prompts = [(ids, STEPS[len(ids)]) for ids in prompts_of(*STEPS)]
    logits, scored = collected(source, prompts)
    for (ids, _), found, each in zip(prompts, logits, scored, strict=True):
        assert_equal(found, checkpoint(name).logits(ids))
        assert each.seen_ids == tuple(ids) and not each.partial and not each.notes


def test_prompts_that_are_scored_together_are_those_scored_alone(
    source: EngineSource, name: str, checkpoint: Any
) -> None:
    assert isinstance(source, Batching)
    prompts = [(ids, 5) for ids in prompts_of(20, 33, 60)]
    for (ids, _), scored in zip(prompts, source.score_together(prompts), strict=True):
        assert scored.logits_TV is not None
        assert_equal(scored.logits_TV, checkpoint(name).logits(ids))
        assert scored.seen_ids == tuple(ids) and not scored.partial


def test_one_prompt_is_a_logits_source(source: EngineSource, name: str, checkpoint: Any) -> None:
    assert isinstance(source, LogitsSource)
    assert source.dtype == "float32" and source.vocab_size == 320 and "chunks of 48" in source.name
    ids = prompts_of(60)[0]
    for steps in (0, 1, 59):
        scored = source.score(ids, steps)
        assert_equal(scored.logits_TV, checkpoint(name).logits(ids))
        assert scored.seen_ids == tuple(ids)


def test_cache_equals_transformers(source: EngineSource, name: str, checkpoint: Any) -> None:
    """Every layer, in the order of positions; a windowed layer has what its last query sees and nothing older."""
    ids = prompts_of(130)[0]
    with torch.no_grad():
        cache = checkpoint(name).reference(torch.tensor([ids]), use_cache=True).past_key_values
    layers = source.score(ids, 20).kv
    assert [layer.layer for layer in layers] == list(range(len(cache.layers)))
    starts = {layer.start for layer in layers}
    assert starts == ({0, 90} if name == "gemma3" else {0})
    for layer, theirs in zip(layers, cache.layers, strict=True):
        assert layer.keys_SKD.shape[0] == 130 - layer.start
        for mine, other in ((layer.keys_SKD, theirs.keys), (layer.values_SKD, theirs.values)):
            expected = other[0].transpose(0, 1)[-mine.shape[0] :]
            # transformers keeps one token less than the window.
            mine = mine[-expected.shape[0] :]
            assert (mine - expected).norm() <= 1e-5 * expected.norm()


def test_decoded_positions_ran_as_decodes(source: EngineSource) -> None:
    ids = prompts_of(60)[0]
    with source.modules(["layers.1", "head"]) as take:
        source.score(ids, 10)
        records = take()
        assert take() == []
    steps = [r for r in records if r.module == "layers.1"]
    assert [(r.phase, r.label.tokens) for r in steps] == [("prefill", 48), ("extend", 2), *[("decode", 1)] * 10]
    positions = torch.cat([r.positions_T for r in steps])
    assert positions.tolist() == list(range(60))
    assert all(r.output.shape == (r.label.tokens, 64) for r in steps)
    with source.modules(["norm"]) as take:
        assert take() == []


def test_a_request_that_breaks_is_partial(source: EngineSource, name: str, checkpoint: Any) -> None:
    runner = source._llm.llm_engine.model_executor.driver_worker.worker.runner
    ids = prompts_of(30)[0]

    def poison(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.full_like(output, float("nan")) if args[1].positions_T.max() == 25 else output

    hook = runner.model.layers[1].register_forward_hook(poison)
    try:
        scored = source.score(ids, 10)
    finally:
        hook.remove()
    assert scored.partial and "after position 25" in scored.notes[0] and "NonFiniteError" in scored.notes[0]
    assert scored.logits_TV.shape[0] == 26 and scored.logits_TV[25].isnan().all() and scored.kv is None
    assert_equal(scored.logits_TV[:25], checkpoint(name).logits(ids)[:25])
    assert_equal(source.score(ids, 10).logits_TV, checkpoint(name).logits(ids))


@pytest.mark.parametrize(
    ("ids", "steps", "message"),
    [
        ([], 0, "with 0 prompt ids"),
        ([5, 6], 2, "0 to 1"),
        ([5] * 160, 3, "max_model_len 160"),
        ([5, 320], 0, "ids from 0 to 319"),
        ([-1], 0, "got -1"),
    ],
)
def test_prompts_that_cannot_be_scored_are_refused(
    source: EngineSource, ids: list[int], steps: int, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        source.stream([([5, 6], 1), (ids, steps)], lambda *_: None)
    assert not source._llm.llm_engine.has_unfinished_requests(), "nothing was started"


def test_a_callback_that_fails_leaves_a_usable_engine(source: EngineSource, name: str, checkpoint: Any) -> None:
    ids = prompts_of(20)[0]
    with pytest.raises(KeyError):
        source.stream([(ids, 5), (ids, 2)], lambda *_: {}["no"])
    assert_equal(source.score(ids, 5).logits_TV, checkpoint(name).logits(ids))


def test_engines_follow_each_other_in_one_process(checkpoint: Any, cpu_mode: None, monkeypatch: Any) -> None:
    """A package that is not installed, then another engine; variables and paths are as before."""
    import os
    import sys

    monkeypatch.delenv("VLLM_NEURON_MODEL_PACKAGE", raising=False)
    before, path = dict(os.environ), list(sys.path)
    folder, ids = checkpoint("llama").folder, prompts_of(12)[0]
    other = Uninstalled("other-llama", "LlamaForCausalLM", "tests.support.half_llama:HalfLlama")
    with EngineSource(folder, EngineOptions(kernels="off", **TINY), package=other, kv=False) as source:
        assert "other-llama" in source.name and "kernels off" in source.name
        scored = source.score(ids, 4)
        assert scored.kv is None
        assert_equal(scored.logits_TV, 0.5 * checkpoint("llama").logits(ids))
    assert sys.path == path and {k: v for k, v in os.environ.items() if k in before} == before
    with EngineSource(folder, EngineOptions(**TINY)) as source:
        assert_equal(source.score(ids, 4).logits_TV, checkpoint("llama").logits(ids))


def test_cached_prefixes_are_gone_on_from(checkpoint: Any, cpu_mode: None) -> None:
    """The second time, whole blocks of the prompt come from the cache; what is computed after them is the same."""
    ids = prompts_of(110)[0]
    expected = checkpoint("gemma3").logits(ids)
    options = EngineOptions(enable_prefix_caching=True, **TINY)
    with EngineSource(checkpoint("gemma3").folder, options) as source:
        cold, warm = source.score(ids, 5), source.score(ids, 5)
    assert cold.first == 0 and warm.first == 96 and cold.seen_ids == warm.seen_ids == tuple(ids)
    assert_equal(cold.logits_TV, expected)
    assert_equal(warm.logits_TV, expected[96:])
    for a, b in zip(cold.kv, warm.kv, strict=True):
        assert a.start == b.start and (a.keys_SKD - b.keys_SKD).norm() <= 1e-5 * a.keys_SKD.norm()


def test_modules_of_compiled_layers_are_refused(checkpoint: Any, cpu_mode: None, monkeypatch: Any) -> None:
    """Nothing is compiled here: the switch alone decides."""
    monkeypatch.setattr("vllm_neuron.vllm.adapter.cpu._compile_layers", lambda model: None)
    options = EngineOptions(neuron_config={"compile_layers": True, "warmup": "sample"}, **TINY)
    with (
        EngineSource(checkpoint("llama").folder, options) as source,
        pytest.raises(ConfigError, match="an engine without compile_layers"),
        source.modules(["layers.*"]),
    ):
        pass


def test_a_model_that_is_not_there(tmp_path: Path, cpu_mode: None) -> None:
    with pytest.raises(ConfigError, match="a checkpoint folder, or an id"):
        EngineSource(tmp_path / "nothing", EngineOptions(**TINY))


@pytest.mark.parametrize("in_memory", [1 << 28, 0])
def test_logits_lie_in_memory_or_in_a_file(monkeypatch: Any, tmp_path: Path, in_memory: int) -> None:
    monkeypatch.setattr("vllm_neuron.vllm.rows.IN_MEMORY", in_memory)
    buffer = LogitsBuffer(5, 7, tmp_path)
    rows = torch.randn(4, 7)
    buffer.write(0, rows[:3])
    buffer.write(3, rows[3:])
    assert torch.equal(buffer.filled(), rows)
    assert list(tmp_path.iterdir()) == [], "the file has no name"


@pytest.mark.slow
def test_two_ranks(checkpoint: Callable[[str], Any], cpu_mode: None) -> None:
    """Two processes: the rows come through rank 0, heads of the cache from both."""
    ids = prompts_of(60)[0]
    with EngineSource(checkpoint("gemma3").folder, EngineOptions(tensor_parallel_size=2, **TINY)) as source:
        prompts = [(each, STEPS[len(each)]) for each in prompts_of(*STEPS)]
        logits, scored = collected(source, prompts)
        for (each, _), found in zip(prompts, logits, strict=True):
            assert_equal(found, checkpoint("gemma3").logits(each))
        assert scored[3].kv[5].keys_SKD.shape == (60, 2, 32)
        with source.modules(["layers.1"]) as take:
            source.score(ids, 1)
            records = take()
    assert {record.rank for record in records} == {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float65"}, "'float32'"),
        ({"max_model_len": 5000}, "5000"),
        ({"engine": {"block_size": -3}}, "engine"),
    ],
)
def test_what_vllm_refuses_is_one_error(checkpoint: Any, cpu_mode: None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSource(checkpoint("llama").folder, EngineOptions(**{**TINY, **options}))
