"""Buckets: defaults, the user's lists, and packing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.vllm.worker.buckets import Buckets, plan


def make(**lists: tuple[int, ...]) -> Buckets:
    return plan(NeuronConfig(**lists), max_tokens=512, max_rows=24, max_model_len=1000, block_sizes=[32])


def test_defaults_are_powers_of_two_and_end_at_the_limits() -> None:
    assert make() == Buckets((16, 32, 64, 128, 256, 512), (1, 2, 4, 8, 16, 24), (32, 64, 128, 256, 512, 1024))


def test_a_list_of_the_user_is_taken() -> None:
    assert make(num_seqs_buckets=(4, 24)).rows == (4, 24)


@pytest.mark.parametrize(
    ("lists", "match"),
    [
        ({"num_seqs_buckets": (4, 16)}, "last bucket of 24"),
        ({"num_batched_tokens_buckets": (64, 1024)}, "last bucket of 512"),
        ({"decode_context_length_buckets": (48, 1024)}, "multiples of the block size 32"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(lists: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(**lists)


def test_more_than_the_largest_bucket_is_an_error() -> None:
    with pytest.raises(ShapeError, match="largest bucket"):
        make().row_bucket(25)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=40))
def test_packs_hold_every_prefill_once_and_fit(lengths: list[int]) -> None:
    buckets = make()
    packs = buckets.pack(lengths)
    assert [i for pack in packs for i in pack] == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in pack) <= 512 for pack in packs)


def test_a_pack_is_split_when_its_bucket_would_be_mostly_padding() -> None:
    """32 prompts of 17 tokens are 544: twice 255 in 256 and 34 in 64, not 544 in 1024."""
    buckets = plan(NeuronConfig(), max_tokens=2048, max_rows=32, max_model_len=1024, block_sizes=[32])
    packs = buckets.pack([17] * 32)
    assert [buckets.token_bucket(17 * len(pack)) for pack in packs] == [256, 256, 64]


def test_every_shape_can_be_run_on_padding() -> None:
    """Warm-up's steps have the shapes that they are made for, prefills longer than the longest request too."""
    from vllm_neuron.vllm.worker.inputs import StepBuilder
    from vllm_neuron.vllm.worker.kv import GroupShape
    from vllm_neuron.vllm.worker.warmup import empty_work

    buckets = plan(NeuronConfig(), max_tokens=512, max_rows=4, max_model_len=128, block_sizes=[16])
    builder = StepBuilder(buckets, [GroupShape(16, None, None), GroupShape(16, 40, None)])
    shapes = buckets.shapes()
    assert len(shapes) == len(set(shapes))
    for shape in shapes:
        work = empty_work(builder, shape, builder.buckets.context[-1])
        assert work.shape == shape and work.step.tokens == shape.size
        assert all(view.slots_T.max() < 16 and view.mask_BQS.any(-1).all() for view in work.step.views)
