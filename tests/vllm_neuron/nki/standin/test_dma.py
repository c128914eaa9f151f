"""DMA: copies, casts, gathers, scatters, transposes, sums."""

import ml_dtypes
import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import last_counts, nisa, nl

SKIP = nisa.oob_mode.skip


def test_copies_follow_row_major_order_and_cast():
    x = normal(6, 4)

    def kernel(a):
        t = empty((8, 3), nl.bfloat16)
        nisa.dma_copy(dst=t, src=a)
        return out(t)

    assert np.array_equal(run(kernel, x), x.reshape(8, 3).astype(ml_dtypes.bfloat16))


def test_counts_bytes_by_direction():
    x = normal(8, 4)

    def kernel(a):
        t = empty((8, 4), nl.bfloat16)
        nisa.dma_copy(dst=t, src=a)
        result = nl.ndarray((8, 4), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=t)
        nisa.dma_copy(dst=result[0:4], src=result[4:8])
        nisa.dma_copy(dst=t[0:4], src=t[4:8])
        return result

    run(kernel, x)
    counts = last_counts()
    assert counts.dma_bytes == {"hbm>sbuf": 128, "sbuf>hbm": 64, "hbm>hbm": 32, "sbuf>sbuf": 32}
    assert counts.hbm_traffic == 128 + 64 + 2 * 32
    assert counts.instructions["dma"] == 4


def test_psum_is_out_of_reach_of_dma():
    def kernel(a):
        p = empty((8, 4), buffer=nl.psum)
        nisa.dma_copy(dst=p, src=a)
        return out(p)

    with pytest.raises(KernelError, match=r"dma_copy\.dst.*psum.*in hbm or sbuf"):
        run(kernel, normal(8, 4))


def test_element_counts_must_agree():
    def kernel(a):
        t = empty((8, 5))
        nisa.dma_copy(dst=t, src=a)
        return out(t)

    with pytest.raises(KernelError, match=r"dma_copy\.src.*\(8, 4\).*40 elements"):
        run(kernel, normal(8, 4))


def test_hwdge_does_not_cast():
    def kernel(a):
        t = empty((8, 4), nl.bfloat16)
        nisa.dma_copy(dst=t, src=a, dge_mode=nisa.dge_mode.hwdge)
        return out(t)

    with pytest.raises(KernelError, match=r"float32.*bfloat16.*hwdge"):
        run(kernel, normal(8, 4))


def test_access_pattern_broadcasts_over_partitions():
    x = normal(1, 6)

    def kernel(a):
        t = empty((5, 6))
        nisa.dma_copy(dst=t, src=a.ap(pattern=[[0, 5], [1, 6]]))
        return out(t)

    assert np.array_equal(run(kernel, x), np.tile(x, (5, 1)))


@pytest.mark.parametrize("seed", range(3))
def test_gather_of_rows(seed):
    x = normal(20, 3, 4)
    index = np.random.default_rng(seed).integers(0, 20, (7, 1)).astype(np.int32)

    def kernel(a, i):
        t, u = empty((7, 12)), empty((7, 3, 4))
        at = tile(i)
        nisa.dma_copy(dst=t, src=a.ap(pattern=[[12, 7], [1, 12]], vector_offset=at, indirect_dim=0))
        nisa.dma_copy(dst=u, src=a.vector_select(0, at))
        return out(t), out(u)

    flat, shaped = run(kernel, x, index)
    assert np.array_equal(flat, x[index[:, 0]].reshape(7, 12))
    assert np.array_equal(shaped, x[index[:, 0]])


def test_gather_counts_an_inner_dimension():
    x = normal(5, 4, 3)
    tokens = np.array([[0], [7], [19]], np.int32)

    def kernel(a, i):
        t = empty((3, 3))
        nisa.dma_copy(dst=t, src=a.ap(pattern=[[3, 3], [1, 3]], vector_offset=tile(i), indirect_dim=1))
        return out(t)

    assert np.array_equal(run(kernel, x, tokens), x.reshape(20, 3)[tokens[:, 0]])


def test_indices_outside_are_an_error_or_leave_the_target_alone():
    x = normal(4, 3)
    index = np.array([[1], [9], [-1], [3]], np.int32)

    def kernel(mode):
        def body(a, i):
            t = empty((4, 3))
            nisa.memset(dst=t, value=-7.0)
            source = a.ap(pattern=[[3, 4], [1, 3]], vector_offset=tile(i), indirect_dim=0)
            nisa.dma_copy(dst=t, src=source, oob_mode=mode)
            return out(t)

        return body

    with pytest.raises(KernelError, match=r"index 9.*0 to 3 of a.*oob_mode"):
        run(kernel(nisa.oob_mode.error), x, index)
    result = run(kernel(SKIP), x, index)
    assert last_counts().dma_bytes["hbm>sbuf"] == index.nbytes + 2 * 3 * 4
    assert np.array_equal(result, np.stack([x[1], np.full(3, -7), np.full(3, -7), x[3]]))


def test_skipped_rows_stay_unwritten():
    def kernel(a, i):
        t = empty((2, 3))
        source = a.ap(pattern=[[3, 2], [1, 3]], vector_offset=tile(i), indirect_dim=0)
        nisa.dma_copy(dst=t, src=source, oob_mode=SKIP)
        return out(t)

    with pytest.raises(KernelError, match=r"3 elements of sbuf_tensor.*never written"):
        run(kernel, normal(4, 3), np.array([[1], [9]], np.int32))


def test_scatter_writes_rows_in_place():
    cache, rows = normal(10, 4), normal(3, 4, seed=1)
    slots = np.array([[8], [200], [0]], np.int32)
    before = cache.copy()

    def kernel(c, r, s):
        target = c.ap(pattern=[[4, 3], [1, 4]], vector_offset=tile(s), indirect_dim=0)
        nisa.dma_copy(dst=target, src=tile(r), oob_mode=SKIP)
        return c

    result = run(kernel, cache, rows, slots)
    assert result is cache or np.shares_memory(result, cache)
    before[8], before[0] = rows[0], rows[2]
    assert np.array_equal(cache, before)


def test_scalar_offset_from_a_tensor_and_a_register():
    x = normal(6, 8, 4)
    index = np.array([[5]], np.int32)

    def kernel(a, i):
        at = tile(i)
        register = nisa.register_alloc()
        nisa.register_load(register, at)
        t, u, v = empty((8, 4)), empty((8, 4)), empty((8, 4))
        pattern = [[4, 8], [1, 4]]
        nisa.dma_copy(dst=t, src=a.ap(pattern=pattern, scalar_offset=at, indirect_dim=0))
        nisa.dma_copy(dst=u, src=a.ap(pattern=pattern, scalar_offset=register, indirect_dim=0))
        nisa.dma_copy(dst=v, src=a.select(0, at))
        return out(t), out(u), out(v)

    for result in run(kernel, x, index):
        assert np.array_equal(result, x[5])


def test_scalar_offset_outside():
    def kernel(mode):
        def body(a, i):
            t = empty((8, 4))
            nisa.memset(dst=t, value=3.0)
            source = a.ap(pattern=[[4, 8], [1, 4]], scalar_offset=tile(i), indirect_dim=0)
            nisa.dma_copy(dst=t, src=source, oob_mode=mode)
            return out(t)

        return body

    x, index = normal(6, 8, 4), np.array([[6]], np.int32)
    assert (run(kernel(SKIP), x, index) == 3).all()
    with pytest.raises(KernelError, match="index 6"):
        run(kernel(nisa.oob_mode.error), x, index)


def test_scalar_offset_reaches_compute_engines_and_vector_offset_does_not():
    x, index = normal(4, 12), np.array([[2]], np.int32)

    def scalar(a, i):
        t, data = empty((4, 3)), tile(a).reshape((4, 4, 3))
        nisa.tensor_copy(dst=t, src=data.ap(pattern=[[12, 4], [1, 3]], scalar_offset=tile(i), indirect_dim=1))
        return out(t)

    def vector(a, i):
        t, data = empty((4, 12)), tile(a)
        nisa.tensor_copy(dst=t, src=data.ap(pattern=[[12, 1], [1, 12]], vector_offset=tile(i)))
        return out(t)

    assert np.array_equal(run(scalar, x, index), x[:, 6:9])
    with pytest.raises(KernelError, match="Only DMA gathers"):
        run(vector, x, index)


def test_adding_copy():
    x, y = normal(6, 4), normal(6, 4, seed=1)

    def kernel(a, b):
        t = tile(a)
        nisa.dma_copy(dst=t, src=b, dst_rmw_op=nl.add)
        return out(t)

    assert np.array_equal(run(kernel, x, y), x + y)


@pytest.mark.parametrize(("shape", "order"), [((6, 9), (1, 0)), ((2, 3, 4), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))])
def test_dma_transpose(shape, order):
    x = normal(*shape).astype(ml_dtypes.bfloat16)
    turned = tuple(shape[d] for d in order)

    def kernel(a):
        t = empty(turned, nl.bfloat16)
        nisa.dma_transpose(dst=t, src=a)
        return out(t)

    assert np.array_equal(run(kernel, x), x.transpose(order))


def test_dma_transpose_gathers_first():
    x = normal(40, 128).astype(ml_dtypes.bfloat16)
    index = np.arange(39, 7, -2, dtype=np.uint32).reshape(16, 1)

    def kernel(a, i):
        t = empty((128, 1, 16), nl.bfloat16)
        source = a.ap(pattern=[[128, 16], [128, 1], [1, 128]], vector_offset=tile(i), indirect_dim=0)
        nisa.dma_transpose(dst=t, src=source)
        return out(t)

    assert np.array_equal(run(kernel, x, index)[:, 0], x[index[:, 0]].T)


def test_dma_compute_takes_both_orders_of_arguments():
    x, y = normal(6, 4), normal(6, 4, seed=1)

    def kernel(a, b):
        results = []
        for args, kwargs in (
            ((nl.add, [1.0, 1.0]), {}),
            (([1.0, 1.0], nl.add), {}),
            ((), {"reduce_op": nl.add, "scales": [1.0, 1.0]}),
            ((), {"reduce_op": nl.add}),
        ):
            t = empty((6, 4))
            nisa.dma_compute(t, [a, b], *args, **kwargs)
            results.append(out(t))
        return results

    for result in run(kernel, x, y):
        assert np.array_equal(result, x + y)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reduce_op": nl.maximum}, "nl.add"),
        ({"reduce_op": nl.add, "scales": [1.0, 0.5]}, "1.0 for each source"),
        ({"reduce": nl.add}, "reduce"),
    ],
)
def test_dma_compute_only_adds(kwargs, message):
    def kernel(a):
        t = empty((6, 4))
        nisa.dma_compute(t, [a, a], **kwargs)
        return out(t)

    with pytest.raises(KernelError, match=message):
        run(kernel, normal(6, 4))


def test_dma_compute_scatters_onto_what_is_there():
    cache, rows = normal(10, 4), normal(3, 4, seed=1)
    slots = np.array([[8], [2], [0]], np.int32)
    expected = cache.copy()
    expected[slots[:, 0]] += rows

    def kernel(c, r, s):
        def where():
            return c.ap(pattern=[[4, 3], [1, 4]], vector_offset=at, indirect_dim=0)

        at = tile(s)
        nisa.dma_compute(where(), [tile(r), where()], reduce_op=nl.add)
        return c

    run(kernel, cache, rows, slots)
    assert np.allclose(cache, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "pieces"),
    [
        (lambda a: a, 8),
        (lambda a: a[:, 0:4], 8),
        (lambda a: a.reshape((8, 2, 3)).permute((0, 2, 1)), 8 * 6),
        (lambda a: a.ap(pattern=[[0, 8], [1, 6]]), 8),
    ],
)
def test_counts_contiguous_pieces(source, pieces):
    def kernel(a):
        view = source(a)
        t = empty(view.shape)
        nisa.dma_copy(dst=t, src=view)
        nisa.dma_copy(dst=a[0:1], src=a[1:2])
        return a

    run(kernel, normal(8, 6))
    counts = last_counts()
    assert counts.dma_pieces == pieces + 1
    assert counts.piece_bytes == sum(counts.dma_bytes.values()) / (pieces + 1)


def test_hwdge_neither_gathers_nor_scatters():
    def kernel(a, i):
        t = empty((2, 4))
        source = a.ap(pattern=[[4, 2], [1, 4]], vector_offset=tile(i))
        nisa.dma_copy(dst=t, src=source, dge_mode=nisa.dge_mode.hwdge)
        return out(t)

    with pytest.raises(KernelError, match="gather or scatter"):
        run(kernel, normal(4, 4), np.array([[1], [0]], np.int32))


def test_dma_transpose_of_bytes():
    def kernel(a):
        t = empty((4, 8), nl.uint8)
        nisa.dma_transpose(dst=t, src=a)
        return out(t)

    with pytest.raises(KernelError, match="2 or 4 bytes"):
        run(kernel, np.zeros((8, 4), np.uint8))
