"""The kernels over the paged cache against the references: decode with one or few queries, and segments of many."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from tests.vllm_neuron.nki.kernels.attention_cases import CORES, HEADS, SIZES, TYPES, paged, windowed
from vllm_neuron.errors import OperationError
from vllm_neuron.functional import dispatch

OPTIONS = st.fixed_dictionaries(
    {"softcap": st.sampled_from([None, 2.0]), "sinks": st.booleans(), "bias": st.booleans()},
)
BLOCKS = st.sampled_from([(1, 16), (3, 16), (8, 16), (9, 32), (17, 16), (5, 48), (2, 128), (40, 16), (33, 8), (7, 20)])
OPERATIONS = {"decode": NF.attention_decode, "segmented": NF.segmented_attention}


def call(on_cores, agree, operation, cores, q, cache, **options):
    with on_cores(cores):
        found = operation(q, cache.pages, cache.blocks_BM, cache.mask_BQS, **options)
    agree(found, operation.reference(q, cache.pages, cache.blocks_BM, cache.mask_BQS, **options))


def extras(normal, q, cache, kv_heads, softcap=None, sinks=False, bias=False):
    rows, queries, heads, size = q.shape
    return {
        "kv_heads": kv_heads,
        "scale": size**-0.5,
        "softcap": softcap,
        "sinks_N": normal(6, heads, dtype=q.dtype) if sinks else None,
        "bias_BNQS": normal(7, rows, heads, queries, cache.mask_BQS.shape[2]) if bias else None,
    }


def case(normal, rows, queries, blocks, heads, sizes, dtype, **kind):
    n, k = heads
    d, e = sizes
    cache = paged(normal, rows, *blocks, k * (d + e), queries, dtype, **kind)
    return normal(1, rows, queries, n, d, dtype=dtype), cache


@settings(max_examples=120)
@given(st.integers(1, 4), st.integers(1, 3), BLOCKS, HEADS, SIZES, TYPES, OPTIONS, CORES)
def test_decode(on_cores, agree, normal, rows, queries, blocks, heads, sizes, dtype, options, cores):
    q, cache = case(normal, rows, queries, blocks, heads, sizes, dtype)
    call(
        on_cores, agree, NF.attention_decode, cores, q, cache, **extras(normal, q, cache, heads[1], **options)
    )  # fmt: skip


@settings(max_examples=50)
@given(st.integers(1, 2), st.integers(1, 200), BLOCKS, HEADS, SIZES, TYPES, OPTIONS, CORES)
def test_segmented(on_cores, agree, normal, rows, queries, blocks, heads, sizes, dtype, options, cores):
    q, cache = case(normal, rows, queries, blocks, heads, sizes, dtype)
    call(
        on_cores, agree, NF.segmented_attention, cores, q, cache, **extras(normal, q, cache, heads[1], **options)
    )  # fmt: skip


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("kind", [{"window": 5}, {"window": 100}, {"chunk": 32}])
def test_windows_and_chunks(on_cores, agree, normal, kind, operation, cores):
    q, cache = case(normal, 3, 1, (12, 16), (4, 2), (64, 64), torch.bfloat16, **kind)
    assert not cache.mask_BQS[0].all()
    call(on_cores, agree, OPERATIONS[operation], cores, q, cache, **extras(normal, q, cache, 2))


@settings(max_examples=60)
@given(
    st.one_of(st.sampled_from([1, 128, 129, 384]), st.integers(1, 500)), st.sampled_from([8, 16, 20, 32]),
    st.one_of(st.sampled_from([1, 16, 128, 512]), st.integers(1, 700)), st.integers(1, 900),
    HEADS, SIZES, TYPES, OPTIONS, CORES,
)  # fmt: skip
def test_segments_with_a_declared_window(
    on_cores, agree, normal, queries, block, window, done, heads, sizes, dtype, options, cores
):
    """Tables that begin where the first query's window does, also before the sequence; in fp32 the numbers are those
    without the promise.
    """
    cache = windowed(normal, queries, block, heads[1] * sum(sizes), window, done, dtype)
    q = normal(1, 1, queries, heads[0], sizes[0], dtype=dtype)
    given_ = extras(normal, q, cache, heads[1], **options)
    call(on_cores, agree, NF.segmented_attention, cores, q, cache, window=window, **given_)
    if dtype is torch.float32:
        arguments = q, cache.pages, cache.blocks_BM, cache.mask_BQS
        with on_cores(cores):
            found = NF.segmented_attention(*arguments, window=window, **given_)
            agree(found, NF.segmented_attention(*arguments, **given_))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("heads", [(4, 1), (2, 2)])
@pytest.mark.parametrize("window", [600, 2300])
def test_declared_windows_over_several_sections(on_cores, agree, normal, window, heads, cores):
    """Query tiles that share keys, and more of them than a section holds."""
    cache = windowed(normal, 700, 16, heads[1] * 64, window, 3000, torch.float32)
    q = normal(1, 1, 700, heads[0], 32)
    given_ = extras(normal, q, cache, heads[1], sinks=True)
    call(on_cores, agree, NF.segmented_attention, cores, q, cache, window=window, **given_)


def test_a_window_needs_a_key_for_each_query(on_cores, normal):
    cache = windowed(normal, 20, 16, 32, 16, 50, torch.float32)
    q = normal(1, 1, 20, 1, 16)
    arguments = q, cache.pages, cache.blocks_BM[:, :1], cache.mask_BQS[..., :16]
    with on_cores(1), pytest.raises(OperationError, match="a key for each of 20 queries"):
        NF.segmented_attention(*arguments, kv_heads=1, scale=0.2, window=16)
    with on_cores(1), pytest.raises(OperationError, match="window"):
        NF.segmented_attention(q, cache.pages, cache.blocks_BM, cache.mask_BQS, kv_heads=1, scale=0.2, window=0)


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (5, 5), (8, 2), (4, 1)])
@pytest.mark.parametrize("queries", [1, 3])
def test_small_heads_share_the_tensor_engine(on_cores, agree, normal, size, heads, queries):
    """Several KV heads in one product, also where their number doesn't fill the last one."""
    q, cache = case(normal, 2, queries, (9, 16), heads, (size, 24), torch.float32)
    call(on_cores, agree, NF.attention_decode, 1, q, cache, **extras(normal, q, cache, heads[1], sinks=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("blocks", [(8, 16), (41, 16), (150, 16)])
@pytest.mark.parametrize("heads, size, cores", [((3, 1), 64, 1), ((3, 1), 48, 2), ((4, 2), 64, 2), ((5, 1), 32, 1),
                                                ((2, 2), 16, 2)])  # fmt: skip
def test_segments_of_small_heads_share_the_array(on_cores, agree, normal, heads, size, cores, blocks, dtype):
    """Blocks of keys on every part of it, from whole rows of the cache and from parts of them, and the last keys."""
    q, cache = case(normal, 1, min(130, blocks[0] * blocks[1]), blocks, heads, (size, size), dtype)
    call(on_cores, agree, NF.segmented_attention, cores, q, cache, **extras(normal, q, cache, heads[1], bias=True))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("size, value_size", [(64, 48), (40, 40)])
def test_segments_of_a_small_latent_cache(on_cores, agree, normal, size, value_size, cores):
    """Keys are their own values; 40 of them leave a part of the array with rows to spare."""
    cache = paged(normal, 1, 20, 16, size, 140, torch.bfloat16)
    q = normal(1, 1, 140, 3, size, dtype=torch.bfloat16)
    options = {"kv_heads": 1, "scale": 0.15, "latent_size": value_size}
    call(on_cores, agree, NF.segmented_attention, cores, q, cache, **options)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_cache(on_cores, agree, normal, dtype, operation, cores):
    """Keys alone in the cache, and the first channels of each are its value; one KV head for all."""
    cache = paged(normal, 2, 10, 16, 80, 2, dtype)
    q = normal(1, 2, 2, 8, 80, dtype=dtype)
    options = {"kv_heads": 1, "scale": 0.1, "latent_size": 64}
    call(on_cores, agree, OPERATIONS[operation], cores, q, cache, **options)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_several_sections(on_cores, agree, normal, operation, cores):
    """One row of 2,640 keys, the first 2,100 hidden: whole sections, and on two cores a half, show none."""
    q, cache = case(normal, 1, 2, (165, 16), (4, 2), (32, 32), torch.float32)
    cache.mask_BQS[..., :2100] = False
    call(on_cores, agree, OPERATIONS[operation], cores, q, cache, **extras(normal, q, cache, 2, sinks=True))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_rows_without_a_key_are_numbers(on_cores, normal, operation, cores):
    q, cache = case(normal, 1, 1, (4, 16), (2, 1), (16, 16), torch.bfloat16)
    cache.mask_BQS[:] = False
    with on_cores(cores):
        found = OPERATIONS[operation](q, cache.pages, cache.blocks_BM, cache.mask_BQS, kv_heads=1, scale=0.25)
    assert found.isfinite().all()


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_scores_of_any_size(on_cores, agree, normal, operation):
    q, cache = case(normal, 4, 1, (20, 16), (2, 2), (32, 32), torch.float32)
    q = q * torch.tensor([1e-3, 1.0, 30.0, 100.0])[:, None, None, None]
    call(on_cores, agree, OPERATIONS[operation], 1, q, cache, kv_heads=2, scale=1.0)


def test_blocks_that_no_row_names_are_not_read(on_cores, agree, normal):
    """Other blocks of the cache may hold anything."""
    q, cache = case(normal, 2, 1, (5, 16), (2, 1), (16, 16), torch.float32)
    unused = torch.ones(len(cache.pages), dtype=torch.bool)
    unused[cache.blocks_BM.flatten()] = False
    cache.pages[unused] = float("nan")
    call(on_cores, agree, NF.attention_decode, 1, q, cache, kv_heads=1, scale=0.25)


def test_decode_of_many_columns_goes_to_the_other_kernel(on_cores, agree, normal):
    q, cache = case(normal, 1, 40, (5, 16), (4, 2), (16, 16), torch.float32)
    calls, refusals = Counter(dispatch.calls()), Counter(dispatch.refusals())
    call(on_cores, agree, NF.attention_decode, 1, q, cache, kv_heads=2, scale=0.25)
    assert Counter(dispatch.calls()) - calls == Counter({("attention_decode", "nki.segmented_attention"): 1})
    [(operation, kernel, reason)] = Counter(dispatch.refusals()) - refusals
    assert (operation, kernel) == ("attention_decode", "nki.attention_decode")
    assert "160" in reason and "128" in reason


@pytest.mark.parametrize(
    "change, words",
    [
        ({"scale": 0.0}, ["scale", "0.0"]),
        ({"kv_heads": 3}, ["q_BQND.shape[2]", "4", "3 KV heads"]),
        ({"pages": lambda p: p.transpose(0, 1).contiguous().transpose(0, 1)}, ["pages.stride()", "contiguous"]),
        ({"pages": lambda p: p.bfloat16()}, ["pages.dtype", "bfloat16"]),
        ({"pages": lambda p: p[..., :-1].contiguous()}, ["pages.shape", "63", "62"]),
        ({"pages": lambda p: p[..., :32].contiguous()}, ["value size", "0", "1 to 512"]),
        ({"latent_size": 17}, ["latent_size", "17", "16"]),
    ],
)
def test_refusals_name_the_limit(on_cores, normal, change, words):
    q, cache = case(normal, 2, 1, (5, 16), (4, 2), (16, 16), torch.float32)
    options = {"kv_heads": 2, "scale": 0.25} | {n: change[n] for n in change if n != "pages"}
    pages = change.get("pages", lambda p: p)(cache.pages)
    with on_cores(1), pytest.raises(OperationError) as error:
        NF.segmented_attention(q, pages, cache.blocks_BM, cache.mask_BQS, **options)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, blocks, heads, sizes", [
    (8, (128, 16), (32, 8), (128, 128)), (3, (64, 32), (16, 1), (128, 128)), (2, (128, 16), (8, 8), (256, 256)),
    (4, (129, 16), (12, 3), (96, 80)), (1, (512, 16), (8, 1), (128, 128)),
])  # fmt: skip
def test_long(on_cores, agree, normal, rows, blocks, heads, sizes, dtype, operation, cores):
    q, cache = case(normal, rows, 1, blocks, heads, sizes, dtype)
    options = extras(normal, q, cache, heads[1], softcap=5.0, sinks=True)
    call(on_cores, agree, OPERATIONS[operation], cores, q, cache, **options)


@pytest.mark.slow
@settings(max_examples=80)
@given(
    st.sampled_from(sorted(OPERATIONS)), st.integers(1, 4), st.integers(1, 4), st.integers(1, 128),
    st.sampled_from([8, 16]), HEADS, SIZES, TYPES, OPTIONS, CORES,
)  # fmt: skip
def test_any_length(
    on_cores, agree, normal, operation, rows, queries, blocks, block, heads, sizes, dtype, options, cores
):
    q, cache = case(normal, rows, queries, (blocks, block), heads, sizes, dtype)
    more = extras(normal, q, cache, heads[1], **options)
    call(on_cores, agree, OPERATIONS[operation], cores, q, cache, **more)
