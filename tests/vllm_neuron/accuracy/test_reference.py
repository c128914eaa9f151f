"""Hugging Face and a package as sources of logits, on tiny models: equal to a plain run, kept, and chunked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from reference_models.gemma3.factory import Gemma3ForCausalLM
from reference_models.llama3.factory import LlamaForCausalLM
from tests.support.hf import MODELS
from tests.support.tokenizer import save_tokenizer
from vllm_neuron.accuracy import reference
from vllm_neuron.accuracy.golden import GoldenCache
from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.kv_compare import compare_kv
from vllm_neuron.accuracy.logit_validation import logit_validation
from vllm_neuron.accuracy.prompts import default_prompts
from vllm_neuron.accuracy.reach import Reach
from vllm_neuron.accuracy.reference import BodyRun, HFSource
from vllm_neuron.accuracy.results import LevelResult
from vllm_neuron.accuracy.session_source import SessionSource
from vllm_neuron.accuracy.sources import LogitsSource
from vllm_neuron.accuracy.target import PackageTarget
from vllm_neuron.accuracy.testing import assert_close
from vllm_neuron.errors import ShapeError, UnsupportedError

FACTORIES = {"llama": LlamaForCausalLM, "gemma3": Gemma3ForCausalLM}
IDS = [1, *torch.randint(3, 320, (69,), generator=torch.Generator().manual_seed(0)).tolist()]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(request.param) / request.param
    MODELS[request.param].save(made)
    save_tokenizer(made)
    return made


def package(folder: Path, dtype: torch.dtype, **options: int) -> SessionSource:
    target = PackageTarget(FACTORIES[folder.name], folder, AutoConfig.from_pretrained(folder))
    return SessionSource(target.load(dtype), dtype, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_in_chunks_are_those_of_one_plain_run(
    folder: Path, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "CHUNK", 320 * 11)
    source = HFSource(folder, dtype, cache=GoldenCache(tmp_path, 1 << 30))
    assert isinstance(source, LogitsSource) and source.vocab_size == 320 and source.tokenizer_id
    scored = source.score(IDS, 5)
    plain = HFReference.load(folder, dtype).logits(IDS)
    assert scored.logits_TV is not None and scored.logits_TV.dtype == dtype and scored.seen_ids == tuple(IDS)
    assert_close(scored.logits_TV, plain.to(dtype), name="logits")
    assert scored.kv is not None and len(scored.kv) == (4 if folder.name == "llama" else 7)
    # No layer has dropped what its window passed.
    assert all(len(layer.keys_SKD) == len(IDS) and layer.start == 0 for layer in scored.kv)


def test_references_are_computed_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = GoldenCache(tmp_path, 1 << 30)
    first = HFSource(folder, cache=cache).score(IDS, 0)
    again = HFSource(folder, cache=cache)
    other = HFSource(folder, torch.bfloat16, cache=cache)
    monkeypatch.setattr(HFReference, "load", None)
    second = again.score(IDS, 7)
    assert first.logits_TV is not None and second.logits_TV is not None
    assert torch.equal(first.logits_TV, second.logits_TV) and not second.notes
    keys = {again.key(IDS), again.key(IDS[:-1]), other.key(IDS), again.key([*IDS[:-1], 5])}
    assert len(keys) == 4
    with pytest.raises(TypeError):
        again.score(IDS[:-1], 0)


def test_prepare_keeps_all_and_lets_the_model_go(folder: Path, tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path, 1 << 30)
    source = HFSource(folder, cache=cache)
    seen: list[tuple[int, int]] = []
    source.prepare([IDS, [], IDS[:9]], lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)] and source._model is None
    assert cache.load(source.key(IDS)) is not None and cache.load(source.key(IDS[:9])) is not None


def test_without_a_place_on_disk_it_is_held_and_said(folder: Path, tmp_path: Path) -> None:
    source = HFSource(folder, cache=GoldenCache(tmp_path, 0))
    source.prepare([IDS])
    scored = source.score(IDS, 0)
    assert scored.logits_TV is not None and "not cached" in scored.notes[0]
    assert source.score(IDS, 3).logits_TV is scored.logits_TV
    assert list(tmp_path.iterdir()) == []


def test_the_body_is_itself_again(folder: Path) -> None:
    model = HFReference.load(folder, torch.float32).model
    before = model(torch.tensor([IDS])).logits
    BodyRun(model, IDS[:5]).logits(1, 3)
    assert torch.equal(model(torch.tensor([IDS])).logits, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("steps", "chunk"), [(0, None), (30, None), (5, 16)])
def test_a_package_scores_as_its_reference(
    folder: Path, dtype: torch.dtype, steps: int, chunk: int | None, tmp_path: Path
) -> None:
    cache = GoldenCache(tmp_path, 1 << 30)
    mine = package(folder, dtype, **({"chunk": chunk} if chunk else {}), block_size=4)
    gold, base = (
        HFSource(folder, cache=cache).score(IDS, 0),
        HFSource(folder, torch.bfloat16, cache=cache).score(IDS, 0),
    )
    scored = mine.score(IDS, steps)
    assert scored.logits_TV is not None and gold.logits_TV is not None and scored.kv and gold.kv
    exact = dtype == torch.float32
    assert_close(scored.logits_TV, gold.logits_TV, rtol=1e-5 if exact else 0.1)
    layers, notes = compare_kv(scored.kv, gold.kv, base.kv, dtype=dtype, exact=exact)
    assert not notes and len(layers) == len(gold.kv)
    assert [layer.verdict for layer in layers if not layer.passed] == []
    if exact:
        wrong, _ = compare_kv(scored.kv[1:] + scored.kv[:1], gold.kv, base.kv, dtype=dtype, exact=exact)
        assert all(layer.passed for layer in wrong)  # matched by index, not by place


def test_refusals(folder: Path, tmp_path: Path) -> None:
    source = HFSource(folder, cache=GoldenCache(tmp_path, 0))
    for ids, steps in (([], 0), ([1], 1), ([1, 2], -1)):
        with pytest.raises(ShapeError):
            source.score(ids, steps)
    with pytest.raises(UnsupportedError, match=r"HFSource\.dtype"):
        HFSource(folder, torch.int8)


def tokens_of(folder: Path, source: SessionSource, tmp_path: Path, most: int = 150) -> LevelResult:
    """Level 2 of a source with the default prompts."""
    tokenizer, cache = AutoTokenizer.from_pretrained(folder), GoldenCache(tmp_path, 1 << 30)
    gold, base = HFSource(folder, cache=cache), HFSource(folder, torch.bfloat16, cache=cache)
    reach = Reach.of_config(gold.config)
    prompts = default_prompts(lambda text: tokenizer(text)["input_ids"], reach, most_tokens=most)
    return logit_validation(source, prompts, expected=gold, baseline=base, reach=reach)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_package_passes_the_default_prompts(folder: Path, dtype: torch.dtype, tmp_path: Path) -> None:
    level = tokens_of(folder, package(folder, dtype, chunk=64), tmp_path)
    assert level.passed, level.verdict
    assert level.not_covered == ("position > 256",)
    assert all(layer.passed for prompt in level.prompts for layer in prompt.layers)
    if dtype == torch.float32:
        assert level.verdict == "pass: within 1e-04 of the gold"


def test_a_window_off_by_one_shows_where_the_window_ends(tmp_path: Path) -> None:
    made = tmp_path / "gemma3"
    MODELS["gemma3"].save(made)
    save_tokenizer(made)
    config = AutoConfig.from_pretrained(made)
    config.sliding_window = 41
    source = SessionSource(PackageTarget(Gemma3ForCausalLM, made, config).load(torch.float32), torch.float32)
    level = tokens_of(made, source, tmp_path / "goldens", most=70)
    assert level.outcome == "fail"
    # The first query that sees one key too many is at position 40; no prompt fails before it.
    assert {prompt.diverges_at for prompt in level.prompts if len(prompt.ids) > 40} == {40}
    assert all(prompt.passed for prompt in level.prompts if len(prompt.ids) <= 40)
