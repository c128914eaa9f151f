"""Several sequences over one paged cache: every form of step computes what one sequence by itself computes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.vllm_neuron.accuracy.faults.models import subject
from vllm_neuron.accuracy.observed import Runner
from vllm_neuron.accuracy.paged import Paged, Span
from vllm_neuron.accuracy.session import Session
from vllm_neuron.accuracy.ways import BATCH, CHUNKS, DECODE, PADDED, PREFILL, Way
from vllm_neuron.errors import ShapeError
from vllm_neuron.step import Phase

PROMPTS = [list(range(3, 60)), list(range(100, 117)), [7]]


def alone(ids: Sequence[int]) -> Tensor:
    model = subject("gemma3").loaded(torch.float32)
    return Session(model, max_tokens=64).prefill(ids)


@pytest.mark.parametrize("way", [PREFILL, PADDED, DECODE, CHUNKS, BATCH], ids=lambda way: way.name)
def test_every_way_gives_each_prompt_its_own_logits(way: Way) -> None:
    model = subject("gemma3").loaded(torch.float32)
    seen = Runner(model, PROMPTS, ["layers.1"]).run(way)
    expected = torch.cat([alone(ids) for ids in PROMPTS])
    assert seen.logits.isfinite().all() and seen.outputs["layers.1"].isfinite().all()
    torch.testing.assert_close(seen.logits, expected, rtol=1e-4, atol=1e-4)


def test_rows_name_each_token_once() -> None:
    model = subject("llama").loaded(torch.float32)
    for way in (PREFILL, PADDED, DECODE, CHUNKS, BATCH):
        rows = torch.cat([rows for _, rows in way.steps(model, PROMPTS)])
        assert sorted(rows[rows >= 0].tolist()) == list(range(sum(map(len, PROMPTS))))
        assert bool((rows < 0).any()) == (way is not PREFILL)


def test_sequences_never_share_a_slot() -> None:
    paged = Paged(subject("gemma3").loaded(torch.float32), rows=3, max_tokens=30, block_size=4)
    for table in paged.tables:
        assert len(set(table.flatten().tolist())) == table.numel() and int(table.min()) == 1
    paged.share(2, 0, 2)
    assert all(torch.equal(t[2, :2], t[0, :2]) and not torch.equal(t[2, 2:], t[0, 2:]) for t in paged.tables)


def test_no_query_of_a_padded_batch_is_blind() -> None:
    paged = Paged(subject("gemma3").loaded(torch.float32), rows=2, max_tokens=64, block_size=4)
    spans = [Span(0, 50, [5]), Span(1, 3, [6])]
    for phase, given in ((Phase.DECODE, spans), (Phase.EXTEND, spans[:1]), (Phase.PREFILL, [Span(0, 0, [1, 2])])):
        step = paged.step(given, phase, pad=3)
        assert all(view.mask_BQS.any(-1).all() for view in step.views)
        assert step.positions_T[-3:].tolist() == [0, 0, 0]
        assert all(view.slots_T[-3:].tolist() == [0, 0, 0] for view in step.views)


def test_what_has_no_place_is_refused() -> None:
    paged = Paged(subject("llama").loaded(torch.float32), rows=2, max_tokens=8, block_size=4)
    with pytest.raises(ShapeError, match="at most 8 tokens"):
        paged.step([Span(0, 6, [1, 2, 3])], Phase.EXTEND)
    with pytest.raises(ShapeError, match="one sequence"):
        paged.step([Span(0, 1, [1]), Span(1, 1, [2])], Phase.EXTEND)


@pytest.mark.parametrize("pad", [0, 3])
def test_what_a_view_says_of_its_mask_holds(pad: int) -> None:
    """Causality and windows of a pack; a padded token sees the first one, so with padding no window is declared."""
    paged = Paged(subject("gemma3").loaded(torch.float32), rows=2, max_tokens=64, block_size=4)
    step = paged.step([Span(0, 0, list(range(3, 50))), Span(1, 0, list(range(9, 30)))], Phase.PREFILL, pad=pad)
    for (window, _), view in zip(paged.kinds, step.views, strict=True):
        assert view.causal and not view.mask_BQS.triu(1).any()
        assert view.window == (None if pad else window)
        assert view.window is None or not view.mask_BQS.tril(-view.window).any()
    assert pad or any(view.window for view in step.views)
