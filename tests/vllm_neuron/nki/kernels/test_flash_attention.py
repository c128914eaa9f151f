"""The prefill kernel against the reference: shapes, masks as the runner makes them, options, refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from tests.vllm_neuron.nki.kernels.attention_cases import CORES, HEADS, SIZES, TYPES, prefill_mask
from vllm_neuron.errors import OperationError

LENGTHS = st.one_of(st.sampled_from([1, 127, 128, 129, 257]), st.integers(1, 300))
OPTIONS = st.fixed_dictionaries(
    {"softcap": st.sampled_from([None, 2.0]), "sinks": st.booleans(), "bias": st.booleans()},
)


def operands(normal, queries, keys, heads, sizes, dtype, batch=1):
    n, k = heads
    d, e = sizes
    return (
        normal(1, batch, queries, n, d, dtype=dtype),
        normal(2, batch, keys, k, d, dtype=dtype),
        normal(3, batch, keys, k, e, dtype=dtype),
    )


def extras(normal, q, keys, softcap=None, sinks=False, bias=False):
    batch, queries, heads, size = q.shape
    return {
        "scale": size**-0.5,
        "softcap": softcap,
        "sinks_N": normal(6, heads, dtype=q.dtype) if sinks else None,
        "bias_BNQS": normal(7, batch, heads, queries, keys) if bias else None,
    }


def both(on_cores, agree, cores, *tensors, **options):
    with on_cores(cores):
        found = NF.flash_attention(*tensors, **options)
    agree(found, NF.flash_attention.reference(*tensors, **options))


@settings(max_examples=80)
@given(LENGTHS, HEADS, SIZES, TYPES, OPTIONS, st.booleans(), CORES)
def test_any_shape(on_cores, agree, normal, length, heads, sizes, dtype, options, causal, cores):
    """Queries and keys are the same tokens; the mask alone, or with the causal bound declared as the runner does."""
    q, k, v = operands(normal, length, length, heads, sizes, dtype)
    both(
        on_cores, agree, cores, q, k, v, prefill_mask(length), causal=causal, **extras(normal, q, length, **options)
    )  # fmt: skip


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 3), HEADS, TYPES, OPTIONS, CORES)
def test_any_mask(on_cores, agree, normal, queries, keys, batch, heads, dtype, options, cores):
    """Queries unlike keys in number, and a mask without any order."""
    q, k, v = operands(normal, queries, keys, heads, (64, 32), dtype, batch)
    mask = normal(9, batch, queries, keys) > 0.3
    mask[..., 0] = True
    both(on_cores, agree, cores, q, k, v, mask, **extras(normal, q, keys, **options))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kind", [{"packed": 3}, {"window": 7}, {"window": 150}, {"chunk": 64}])
def test_masks_of_the_runner(on_cores, agree, normal, kind, cores):
    q, k, v = operands(normal, 290, 290, (4, 2), (64, 64), torch.bfloat16)
    mask = prefill_mask(290, **kind)
    assert (mask != prefill_mask(290)).any()
    both(on_cores, agree, cores, q, k, v, mask, causal=True, **extras(normal, q, 290))


@settings(max_examples=60)
@given(
    st.one_of(st.sampled_from([1, 128, 129, 512, 640]), st.integers(1, 700)),
    st.one_of(st.sampled_from([1, 2, 127, 128, 129, 130, 256]), st.integers(1, 800)),
    st.integers(1, 4), HEADS, SIZES, TYPES, OPTIONS, CORES, st.booleans(),
)  # fmt: skip
def test_any_declared_window(
    on_cores, agree, normal, length, window, packed, heads, sizes, dtype, options, cores, causal
):
    """Packs of prompts; in fp32 the numbers are those without the promise."""
    q, k, v = operands(normal, length, length, heads, sizes, dtype)
    given_ = {"causal": causal} | extras(normal, q, length, **options)
    mask = prefill_mask(length, packed=min(packed, length - length // 10), window=window).triu(1 - window)
    both(on_cores, agree, cores, q, k, v, mask, window=window, **given_)
    if dtype is torch.float32:
        with on_cores(cores):
            found = NF.flash_attention(q, k, v, mask, window=window, **given_)
            agree(found, NF.flash_attention(q, k, v, mask, **given_))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize(
    "queries, keys, window", [(300, 300, 130), (140, 700, 300), (140, 2300, 200), (2200, 2200, 50), (300, 2500, 2300)]
)
def test_windows_over_several_sections(on_cores, agree, normal, queries, keys, window, size, cores):
    """More keys than queries, tiles that begin in one section and end in the next, and sections that none sees."""
    q, k, v = operands(normal, queries, keys, (2, 1), (size, 32), torch.float32)
    mask = torch.ones(1, queries, keys, dtype=torch.bool).tril(keys - queries).triu(keys - queries - window + 1)
    assert mask.any(-1).all()
    both(on_cores, agree, cores, q, k, v, mask, causal=True, window=window, **extras(normal, q, keys, sinks=True))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kernels", ["off", "auto", "require"])
def test_hidden_blocks_are_left_out_by_the_kernel_alone(agree, normal, monkeypatch, kernels, cores):
    """A promise that does not hold: torch goes by the mask, the kernel never meets what the window hides."""
    q, k, v = operands(normal, 640, 640, (2, 2), (64, 64), torch.float32)
    v[:, :128] = 1e4
    mask = torch.ones(1, 640, 640, dtype=torch.bool).tril()
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", str(cores))
    with NF.use_kernels(kernels):
        found = NF.flash_attention(q, k, v, mask, scale=0.1, causal=True, window=128)[:, 400:]
    if kernels == "require":
        assert found.abs().max() < 10
    else:
        agree(found, NF.flash_attention.reference(q, k, v, mask, scale=0.1)[:, 400:])
        assert found.abs().min() > 10


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("keys", [200, 2048, 2200])
def test_prior_keys(on_cores, agree, normal, keys, cores):
    """More keys than queries: the queries are the last ones; above 2,048 keys in several sections."""
    q, k, v = operands(normal, 140, keys, (2, 1), (32, 32), torch.float32)
    mask = torch.ones(1, 140, keys, dtype=torch.bool)
    both(on_cores, agree, cores, q, k, v, mask, causal=True, **extras(normal, q, keys, sinks=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries, keys", [(128, 128), (140, 653), (300, 300), (40, 2200)])
@pytest.mark.parametrize("heads, size, cores", [((3, 1), 64, 1), ((5, 5), 64, 2), ((3, 1), 48, 2), ((5, 1), 32, 1),
                                                ((2, 2), 16, 2)])  # fmt: skip
def test_small_heads_share_the_array(on_cores, agree, normal, heads, size, cores, queries, keys, dtype):
    """Blocks of keys on every part of it, whole ones and the last, which causality may cut elsewhere."""
    q, k, v = operands(normal, queries, keys, heads, (size, size), dtype)
    mask = normal(9, 1, queries, keys) > -1
    mask[..., 0] = True
    for causal in (True, False):
        both(on_cores, agree, cores, q, k, v, mask, causal=causal, **extras(normal, q, keys, softcap=3.0, bias=True))


@pytest.mark.parametrize("cores", [1, 2])
def test_first_section_shows_nothing(on_cores, agree, normal, cores):
    """What a section without a visible key leaves behind is undone by the next one."""
    q, k, v = operands(normal, 130, 2100, (2, 1), (32, 32), torch.float32)
    mask = torch.zeros(1, 130, 2100, dtype=torch.bool)
    mask[..., 2050:2060] = True
    both(on_cores, agree, cores, q, k, v, mask, **extras(normal, q, 2100))


def test_rows_without_a_key_are_numbers(on_cores, normal):
    """A mask is never empty by contract; should one be, no NaN spreads from its row."""
    q, k, v = operands(normal, 130, 130, (2, 1), (16, 16), torch.bfloat16)
    mask = prefill_mask(130)
    mask[:, 5] = False
    with on_cores(1):
        found = NF.flash_attention(q, k, v, mask, scale=0.25)
    assert found.isfinite().all()
    rows = torch.arange(130) != 5
    expected = NF.flash_attention.reference(q, k, v, mask, scale=0.25)
    assert torch.allclose(found[:, rows].float(), expected[:, rows].float(), atol=2e-2)


def test_scores_of_any_size(on_cores, agree, normal):
    """Maxima of rows are far apart and far above what exp takes."""
    q, k, v = operands(normal, 150, 150, (2, 2), (32, 32), torch.float32)
    q = q * torch.logspace(-3, 2, 150)[None, :, None, None]
    both(on_cores, agree, 1, q, k, v, prefill_mask(150), scale=1.0)


def test_a_sink_may_be_above_every_score(on_cores, agree, normal):
    q, k, v = operands(normal, 20, 20, (4, 2), (16, 16), torch.float32)
    sinks = torch.tensor([50.0, 0.0, -50.0, 5.0])
    both(on_cores, agree, 1, q, k, v, prefill_mask(20), scale=0.25, sinks_N=sinks)


def test_causal_hides_later_keys(on_cores, agree, normal):
    """Also those that the mask shows, as among padded tokens."""
    q, k, v = operands(normal, 200, 200, (2, 1), (16, 16), torch.float32)
    mask = torch.ones(1, 200, 200, dtype=torch.bool)
    both(on_cores, agree, 1, q, k, v, mask, scale=0.25, causal=True)
    seen = NF.flash_attention.reference(q, k, v, mask.tril(), scale=0.25)
    agree(NF.flash_attention.reference(q, k, v, mask, scale=0.25, causal=True), seen)


def test_views_of_a_projection(on_cores, agree, normal):
    """Queries, keys and values as slices of one tensor, as the attention block hands them in."""
    qkv = normal(1, 40, 8, 16)
    q, k, v = qkv.split((4, 2, 2), dim=1)
    both(on_cores, agree, 1, q[None], k[None], v[None], prefill_mask(40), scale=0.25)


REFUSED = [
    ({"scale": -1.0}, ["scale", "-1.0", "above 0"]),
    ({"softcap": 0.0}, ["softcap", "0.0"]),
    ({"sinks_N": torch.zeros(3)}, ["sinks_N.shape", "(3,)", "(2,)"]),
    ({"bias_BNQS": torch.zeros(1, 1, 40, 40)}, ["bias_BNQS.shape", "(1, 1, 40, 40)", "(1, 2, 40, 40)"]),
    ({"mask_BQS": torch.ones(1, 1, 40, dtype=torch.bool)}, ["mask_BQS.shape", "(1, 1, 40)", "(1, 40, 40)"]),
    ({"mask_BQS": torch.ones(1, 40, 40)}, ["mask_BQS.dtype", "float32", "bool"]),
    ({"q_BQND": torch.zeros(1, 41, 2, 16), "mask_BQS": torch.ones(1, 41, 40, dtype=torch.bool), "causal": True},
     ["k_BSKD.shape[1]", "40", "41"]),
    ({"window": 0}, ["window", "0", "above 0"]),
    ({"q_BQND": torch.zeros(1, 40, 2, 8)}, ["k_BSKD.shape", "(1, 40, 1, 16)", "(1, 40, 1, 8)"]),
    ({"v_BSKE": torch.zeros(1, 40, 1, 600)}, ["value size", "600", "512"]),
    ({"q_BQND": torch.zeros(1, 40, 2, 1024), "k_BSKD": torch.zeros(1, 40, 1, 1024)}, ["head size", "1024"]),
    ({"k_BSKD": torch.zeros(1, 40, 1, 16, dtype=torch.bfloat16)}, ["k_BSKD.dtype", "bfloat16", "float32"]),
    ({"q_BQND": torch.zeros(1, 40, 2, 16, dtype=torch.float64)}, ["q_BQND.dtype", "float64"]),
]  # fmt: skip


@pytest.mark.parametrize("change, words", REFUSED, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_refusals_name_the_limit(on_cores, change, words):
    arguments = {
        "q_BQND": torch.zeros(1, 40, 2, 16),
        "k_BSKD": torch.zeros(1, 40, 1, 16),
        "v_BSKE": torch.zeros(1, 40, 1, 16),
        "mask_BQS": torch.ones(1, 40, 40, dtype=torch.bool),
        "scale": 0.25,
    }
    with on_cores(1), pytest.raises(OperationError) as error:
        NF.flash_attention(**(arguments | change))
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length, heads, sizes", [
    (2048, (4, 1), (128, 128)), (2047, (8, 2), (64, 64)), (1500, (16, 1), (80, 80)), (1025, (3, 3), (256, 256)),
    (2048, (2, 2), (96, 96)), (4500, (2, 1), (128, 128)), (700, (16, 1), (576, 512)),
])  # fmt: skip
def test_long(on_cores, agree, normal, length, heads, sizes, dtype, cores):
    q, k, v = operands(normal, length, length, heads, sizes, dtype)
    mask = prefill_mask(length, packed=2)
    both(on_cores, agree, cores, q, k, v, mask, causal=True, **extras(normal, q, length, softcap=5.0, sinks=True))


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(1, 2048), HEADS, SIZES, TYPES, OPTIONS, st.booleans(), CORES)
def test_any_length(on_cores, agree, normal, length, heads, sizes, dtype, options, causal, cores):
    q, k, v = operands(normal, length, length, heads, sizes, dtype)
    mask = prefill_mask(length, packed=min(3, length))
    both(on_cores, agree, cores, q, k, v, mask, causal=causal, **extras(normal, q, length, **options))
