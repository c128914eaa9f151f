"""The cache write kernel against the reference: slots in any order, padding, latent caches, types, and bad slots."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vllm_neuron.functional as NF
from vllm_neuron.errors import KernelError
from vllm_neuron.functional.on_nki.kv_write import MOST_WIDTH

TYPES = [torch.float32, torch.bfloat16, torch.float16]
BLOCK = 16


def write(on_cores, cores, pages, k, v, slots):
    with on_cores(cores):
        NF.kv_write(pages, k, v, slots)
    return pages


@settings(max_examples=80)
@given(
    st.integers(1, 300),
    st.integers(1, 4),
    st.sampled_from([64, 80, 96, 128, 256]),
    st.sampled_from([0, 64, 128]),
    st.sampled_from(TYPES),
    st.sampled_from(TYPES),
    st.sampled_from([1, 2]),
    st.integers(0, 99),
)
def test_any_slots(on_cores, normal, t, heads, size, value_size, dtype, cached, cores, seed):
    k = normal(seed, t, heads, size, dtype=dtype)
    v = normal(seed + 1, t, heads, value_size, dtype=dtype) if value_size else None
    slots = torch.randperm(320, generator=torch.Generator().manual_seed(seed))[:t]
    before = normal(seed + 2, 320 // BLOCK, BLOCK, heads * (size + value_size), dtype=cached)
    expected = before.clone()
    NF.kv_write.reference(expected, k, v, slots)
    assert torch.equal(write(on_cores, cores, before, k, v, slots), expected)


@pytest.mark.parametrize("cores", [1, 2])
def test_padding_shares_a_slot_of_the_null_block(on_cores, normal, cores):
    """Real tokens are untouched by what the padded ones do, and one of those stays in their slot."""
    k, v = normal(1, 140, 2, 64), normal(2, 140, 2, 64)
    slots = torch.cat((torch.arange(20, 90), torch.full((70,), 3)))
    pages = write(on_cores, cores, torch.zeros(8, BLOCK, 256), k, v, slots).view(-1, 256)
    rows = torch.cat((k.flatten(1), v.flatten(1)), dim=-1)
    assert torch.equal(pages[20:90], rows[:70])
    assert any(torch.equal(pages[3], row) for row in rows[70:])
    assert not pages[:3].any() and not pages[4:20].any() and not pages[90:].any()


def test_views_of_the_product_and_int32_slots(on_cores, normal):
    product = normal(1, 9, 4 * 64, dtype=torch.bfloat16)
    k, v = product[:, 64:128].unflatten(-1, (1, 64)), product[:, 128:192].unflatten(-1, (1, 64))
    pages = write(
        on_cores, 1, torch.zeros(2, BLOCK, 128, dtype=torch.bfloat16), k, v, torch.arange(9, dtype=torch.int32)
    )
    assert torch.equal(pages[0, :9], product[:, 64:192])


@pytest.mark.parametrize("slot", [-1, 32])
def test_a_slot_outside_the_cache_is_an_error_and_not_a_write(on_cores, normal, slot):
    pages = torch.zeros(2, BLOCK, 128)
    with pytest.raises(KernelError, match=rf"index {slot}.*0 to 31.*kv_write.py"):
        write(on_cores, 1, pages, normal(1, 1, 1, 64), normal(2, 1, 1, 64), torch.tensor([slot]))
    assert not pages.any()


def test_inside_a_compiled_graph(on_cores, normal):
    k, v = normal(1, 3, 1, 64), normal(2, 3, 1, 64)

    def run(pages, k, v, slots):
        NF.kv_write(pages, k, v, slots)
        return pages[0] * 2

    pages = torch.zeros(2, BLOCK, 128)
    with on_cores(1):
        found = torch.compile(run, fullgraph=True, backend="aot_eager")(pages, k, v, torch.tensor([1, 4, 2]))
    assert torch.equal(pages[0, 4], torch.cat((k[1, 0], v[1, 0])))
    assert torch.equal(found, pages[0] * 2)


def test_the_widest_row_that_is_taken_fits(on_cores, normal):
    k, v = normal(1, 300, 1, MOST_WIDTH - 256), normal(2, 300, 1, 256)
    pages = write(on_cores, 1, torch.zeros(20, BLOCK, MOST_WIDTH, dtype=torch.bfloat16), k, v, torch.arange(300))
    assert torch.equal(pages.view(-1, MOST_WIDTH)[:300, -256:], v[:, 0].bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_large(on_cores, normal, cores):
    k, v = normal(1, 2048, 8, 128, dtype=torch.bfloat16), normal(2, 2048, 8, 128, dtype=torch.bfloat16)
    slots = torch.randperm(4096, generator=torch.Generator().manual_seed(0))[:2048]
    expected = torch.zeros(256, BLOCK, 2048, dtype=torch.bfloat16)
    NF.kv_write.reference(expected, k, v, slots)
    assert torch.equal(write(on_cores, cores, torch.zeros_like(expected), k, v, slots), expected)


@pytest.mark.parametrize(
    "change, field",
    [
        ({"pages": torch.zeros(2, 128, BLOCK).transpose(1, 2)}, "pages.stride()"),
        ({"pages": torch.zeros(2, BLOCK, 128, dtype=torch.float8_e4m3fn)}, "pages.dtype"),
        ({"k_TKD": torch.zeros(2, 1, 64, dtype=torch.int32)}, "k_TKD.dtype"),
        ({"slots_T": torch.zeros(2)}, "slots_T.dtype"),
        ({"pages": torch.zeros(1, 1, MOST_WIDTH + 1)}, "pages.shape[2]"),
        ({"pages": torch.zeros(2, BLOCK, 120)}, "pages.shape"),
        ({"v_TKE": None}, "pages.shape"),
        ({"v_TKE": torch.zeros(1, 1, 64)}, "v_TKE.shape"),
        ({"slots_T": torch.tensor([0, 1, 2])}, "slots_T.shape"),
        ({"slots_T": torch.tensor([[0], [1]])}, "slots_T.shape"),
    ],
)
def test_refusals_name_the_field(change, field):
    call = {
        "pages": torch.zeros(2, BLOCK, 128),
        "k_TKD": torch.zeros(2, 1, 64),
        "v_TKE": torch.zeros(2, 1, 64),
        "slots_T": torch.tensor([0, 1]),
    }
    with NF.use_kernels("simulate"):
        answer = NF.kv_write.explain(**{**call, **change})["nki.kv_write"]
    assert (answer.ok, answer.field) == (False, field)
