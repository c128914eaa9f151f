"""One test body for all reference models, one row a model: in float32 each equals transformers, by every path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from tests.support.hf import MODELS
from vllm_neuron.accuracy.session import Session
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import resolve
from vllm_neuron.parallel import Group, run_in_threads

BOUND = 1e-5
LENGTH = 300  # past every window (40) and past position 256


class Case:
    """A saved tiny model, tokens, and the reference's logits for them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder, self.tiny = folder, MODELS[name]
        reference = self.tiny.save(folder)
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, 320, (LENGTH,), generator=generator).tolist()
        with torch.no_grad():
            self.expected = reference(torch.tensor([self.ids])).logits[0].float()

    def load(self, dtype: torch.dtype = torch.float32) -> Any:
        torch.set_default_dtype(dtype)
        try:
            model = resolve(self.tiny.architecture).from_configs(
                AutoConfig.from_pretrained(self.folder), NeuronConfig()
            )
            model.load_weights(self.folder, dtype, progress=False)
        finally:
            torch.set_default_dtype(torch.float32)
        return model

    def error(self, logits: Tensor) -> float:
        assert logits.shape == self.expected.shape and torch.isfinite(logits).all()
        return float((logits - self.expected).abs().max() / self.expected.abs().max())


@pytest.fixture(scope="module", params=sorted(MODELS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    yield Case(request.param, tmp_path_factory.mktemp(request.param))


def whole(model: Any, ids: list[int]) -> Tensor:
    return Session(model, max_tokens=LENGTH + 20).prefill(ids, pad=12)


def in_chunks(model: Any, ids: list[int]) -> Tensor:
    session = Session(model, max_tokens=LENGTH + 20)
    parts = [session.prefill(ids[:37]), session.extend(ids[37:38]), session.extend(ids[38:230], pad=9)]
    return torch.cat([*parts, *(session.decode(token) for token in ids[230:])])


def test_whole_prompt(case: Case) -> None:
    assert case.error(whole(case.load(), case.ids)) < BOUND


def test_chunks_then_token_by_token(case: Case) -> None:
    assert case.error(in_chunks(case.load(), case.ids)) < BOUND


def test_packed_weights_compute_the_same(case: Case) -> None:
    model = case.load()
    model.pack_weights()
    assert case.error(in_chunks(model, case.ids)) < BOUND


@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_over_ranks(case: Case, ranks: int) -> None:
    def work(group: Group) -> Tensor:
        return in_chunks(case.load(), case.ids)

    outputs = run_in_threads(ranks, work)
    for logits in outputs:
        assert case.error(logits) < BOUND
        assert torch.equal(logits, outputs[0])


def test_kernels_and_references_agree(case: Case) -> None:
    import vllm_neuron.functional as NF

    with NF.use_kernels("off"):
        assert case.error(in_chunks(case.load(), case.ids)) < BOUND


def test_a_wrong_reading_would_be_seen(case: Case) -> None:
    """The bound is tight enough to see one window, eps or base that is off."""
    model = case.load()
    attention = next(model.attentions())
    attention.scale *= 1.01
    assert case.error(whole(model, case.ids)) > 3 * BOUND
