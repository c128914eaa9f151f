"""Index patterns, selection, top-8 search, gathers, scans and statistics against NumPy."""

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import nisa, nl

LOWEST = np.finfo(np.float32).min


def affine(partitions, pattern, offset, channel):
    """The documented loop, written out."""
    rows = []
    for p in range(partitions):
        row = []
        for index in np.ndindex(*[count for _, count in pattern]):
            row.append(offset + p * channel + sum(i * step for i, (step, _) in zip(index, pattern, strict=True)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(
    ("pattern", "offset", "channel"),
    [([[1, 12]], 0, 0), ([[1, 12]], -3, 2), ([[-2, 3], [5, 4]], 7, -1), ([[1, 2], [0, 3], [4, 2]], 0, 10)],
)
def test_iota(pattern, offset, channel):
    def kernel(a):
        t, f = empty((8, 12), nl.int32), empty((8, 3, 4))
        nisa.iota(dst=t, pattern=pattern, offset=offset, channel_multiplier=channel)
        nisa.iota(dst=f, pattern=pattern, offset=offset, channel_multiplier=channel)
        return out(t), out(f)

    expected = affine(8, pattern, offset, channel)
    whole, shaped = run(kernel, normal(1, 1))
    assert np.array_equal(whole, expected)
    assert np.array_equal(shaped.reshape(8, 12), expected)


@pytest.mark.parametrize("name", ["greater_equal", "less", "equal", "not_equal", "greater", "less_equal"])
def test_affine_select_is_a_mask(name):
    x = normal(8, 12)

    def kernel(a):
        t = empty((8, 12), nl.bfloat16)
        nisa.affine_select(
            dst=t,
            pattern=[[-1, 12]],
            offset=2,
            channel_multiplier=1,
            on_true_tile=tile(a),
            on_false_value=-30000.0,
            cmp_op=getattr(nl, name),
        )
        return out(t)

    keep = getattr(np, name)(affine(8, [[-1, 12]], 2, 1), 0)
    expected = np.where(keep, x, np.float32(-30000))
    assert np.array_equal(run(kernel, x).astype(np.float32), expected.astype(run(kernel, x).dtype).astype(np.float32))


def test_patterns_must_fill_a_partition():
    def kernel(a):
        t = empty((8, 12))
        nisa.iota(dst=t, pattern=[[1, 11]], offset=0)
        return out(t)

    with pytest.raises(KernelError, match=r"iota\.pattern.*12 elements"):
        run(kernel, normal(1, 1))


def test_range_select():
    x, low, high = normal(8, 12), np.arange(8, dtype=np.float32)[:, None], np.full((8, 1), 13, np.float32)

    def kernel(a, b, c):
        t, largest = empty((8, 12)), empty((8, 1))
        nisa.range_select(
            dst=t,
            on_true_tile=tile(a),
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=tile(b),
            bound1=tile(c),
            range_start=4,
            reduce_res=largest,
        )
        return out(t), out(largest)

    index = np.arange(12) + 4
    expected = np.where((index >= low) & (index < high), x, LOWEST)
    values, largest = run(kernel, x, low, high)
    assert np.array_equal(values, expected)
    assert np.array_equal(largest[:, 0], expected.max(axis=1))


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce_and_predicated_copy(reverse):
    x, y = normal(8, 12), normal(8, 1, seed=1)
    predicate = (normal(8, 12, seed=2) > 0).astype(np.uint8)

    def kernel(a, b, p):
        t, largest, copied = empty((8, 12)), empty((8, 1)), empty((8, 12))
        keep = tile(p)
        nisa.select_reduce(
            dst=t,
            predicate=keep,
            on_true=tile(a),
            on_false=tile(b),
            reduce_res=largest,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reverse_pred=reverse,
        )
        nisa.memset(dst=copied, value=5.0)
        nisa.tensor_copy_predicated(dst=copied, src=tile(a), predicate=keep, reverse_pred=reverse)
        nisa.tensor_copy_predicated(dst=copied[0:1], src=-1.0, predicate=keep[0:1], reverse_pred=reverse)
        return out(t), out(largest), out(copied)

    keep = (predicate == 0) if reverse else (predicate != 0)
    values, largest, copied = run(kernel, x, y, predicate)
    expected = np.where(keep, x, y)
    assert np.array_equal(values, expected)
    assert np.array_equal(largest[:, 0], expected.max(axis=1))
    merged = np.where(keep, x, np.float32(5))
    merged[0, keep[0]] = -1
    assert np.array_equal(copied, merged)


def test_predicated_copy_writes_only_what_it_copies():
    predicate = np.array([[1, 0, 1]], np.uint8)

    def kernel(p):
        t = empty((1, 3))
        nisa.tensor_copy_predicated(dst=t, src=2.0, predicate=tile(p))
        return out(t)

    with pytest.raises(KernelError, match=r"1 elements .* the first at \(0, 1\)"):
        run(kernel, predicate)


@pytest.mark.parametrize("seed", range(3))
def test_max8_and_find_index8(seed):
    x = np.random.default_rng(seed).integers(-9, 9, (16, 40)).astype(np.float32)

    def kernel(a):
        data = tile(a)
        top, at = empty((16, 8)), empty((16, 8), nl.uint32)
        nisa.max8(dst=top, src=data)
        nisa.nc_find_index8(dst=at, data=data, vals=top)
        return out(top), out(at)

    top, at = run(kernel, x)
    order = np.argsort(-x, axis=1, kind="stable")[:, :8]
    assert np.array_equal(top, np.take_along_axis(x, order, axis=1))
    assert np.array_equal(at, order)


def test_match_replace8_finds_the_next_largest():
    x = normal(16, 64)

    def kernel(a):
        data = tile(a)
        top, rest, second, at = empty((16, 8)), empty((16, 64)), empty((16, 8)), empty((16, 8), nl.uint32)
        nisa.max8(dst=top, src=data)
        nisa.nc_match_replace8(dst=rest, data=data, vals=top, imm=float(LOWEST), dst_idx=at)
        nisa.max8(dst=second, src=rest)
        return out(second), out(rest), out(at)

    second, rest, at = run(kernel, x)
    order = np.argsort(-x, axis=1)
    assert np.array_equal(second, np.take_along_axis(x, order[:, 8:16], axis=1))
    assert np.array_equal(at, order[:, :8])
    assert (rest == LOWEST).sum() == 16 * 8


def test_equal_values_replace_one_occurrence_each():
    x = np.array([[3, 1, 3, 3, 0, 2, 5, 4, 6, 7]], np.float32)

    def kernel(a, v):
        rest, at = empty((1, 10)), empty((1, 8), nl.uint32)
        nisa.nc_match_replace8(dst=rest, data=tile(a), vals=tile(v), imm=-1.0, dst_idx=at)
        return out(rest), out(at)

    values = np.array([[3, 3, 1, 0, 2, 5, 4, 6]], np.float32)
    rest, at = run(kernel, x, values)
    assert rest.tolist() == [[-1, -1, -1, 3, -1, -1, -1, -1, -1, 7]]
    assert at.tolist() == [[2, 0, 1, 4, 5, 6, 7, 8]]


def test_searching_what_is_not_there():
    def kernel(a, v):
        at = empty((1, 8), nl.uint32)
        nisa.nc_find_index8(dst=at, data=tile(a), vals=tile(v))
        return out(at)

    with pytest.raises(KernelError, match=r"99.0 in slot 7 of partition 0"):
        run(kernel, np.arange(10, dtype=np.float32)[None], np.array([[0, 1, 2, 3, 4, 5, 6, 99]], np.float32))


@pytest.mark.parametrize("width", [7, 16385])
def test_top8_limits(width):
    def kernel(a):
        top = empty((1, 8))
        nisa.max8(dst=top, src=tile(a))
        return out(top)

    with pytest.raises(KernelError, match="8 to 16384"):
        run(kernel, normal(1, width))


def test_stream_shuffle_inside_quadrants():
    x = normal(64, 5)
    mask = [31 - i for i in range(32)]
    mask[3] = 255

    def kernel(a):
        t = empty((64, 5))
        nisa.memset(dst=t, value=0.0)
        nisa.nc_stream_shuffle(dst=t, src=tile(a), shuffle_mask=mask)
        one = empty((32, 5))
        nisa.nc_stream_shuffle(dst=one, src=tile(a)[0:1], shuffle_mask=[0] * 32)
        return out(t), out(one)

    shuffled, one = run(kernel, x)
    for q in (0, 32):
        for i, m in enumerate(mask):
            assert np.array_equal(shuffled[q + i], x[q + m] if m != 255 else np.zeros(5))
    assert np.array_equal(one, np.tile(x[:1], (32, 1)))


def test_stream_shuffle_leaves_kept_partitions_unwritten():
    def kernel(a):
        t = empty((32, 5))
        nisa.nc_stream_shuffle(dst=t, src=tile(a), shuffle_mask=[255, *range(1, 32)])
        return out(t)

    with pytest.raises(KernelError, match="5 elements"):
        run(kernel, normal(32, 5))


@pytest.mark.parametrize("mask", [[0] * 31, [32] * 32, [-1] * 32])
def test_stream_shuffle_masks(mask):
    def kernel(a):
        t = tile(a)
        nisa.nc_stream_shuffle(dst=t, src=t, shuffle_mask=mask)
        return out(t)

    with pytest.raises(KernelError, match="shuffle_mask"):
        run(kernel, normal(32, 5))


def test_gathers():
    x = normal(32, 24)
    index = np.random.default_rng(0).integers(0, 24, (32, 6)).astype(np.uint32)
    pairs = np.random.default_rng(1).integers(0, 12, (32, 3)).astype(np.uint16)

    def kernel(a, i, j):
        data = tile(a)
        t, u = empty((32, 6)), empty((32, 40, 2))
        nisa.nc_n_gather(dst=t, data=data, indices=tile(i))
        nisa.local_gather(dst=u, src_buffer=data, index=tile(j), num_elem_per_idx=2, num_valid_indices=40)
        return out(t), out(u)

    gathered, local = run(kernel, x, index, pairs)
    assert np.array_equal(gathered, np.take_along_axis(x, index.astype(np.int64), axis=1))
    for group in (0, 16):
        flat = [pairs[group + p, c] for c in range(3) for p in range(16)][:40]
        for p in range(group, group + 16):
            assert np.array_equal(local[p], x[p].reshape(12, 2)[flat])


def test_gather_outside():
    def kernel(a, i):
        t = empty((2, 1))
        nisa.nc_n_gather(dst=t, data=tile(a), indices=tile(i))
        return out(t)

    with pytest.raises(KernelError, match=r"got 5.*0 to 4"):
        run(kernel, normal(2, 5), np.array([[0], [5]], np.uint32))


def test_nonzero_with_count():
    x = (normal(32, 8) > 0.3).astype(np.int32)

    def kernel(a):
        t = empty((32, 9), nl.int32)
        nisa.memset(dst=t, value=77)
        nisa.nonzero_with_count(dst=t, src=tile(a), index_offset=16, padding_val=-5)
        return out(t)

    result = run(kernel, x)
    for p in range(32):
        if p % 16:
            assert (result[p] == 77).all()
        else:
            found = [i + 16 for i in range(8) if x[p, i]]
            assert result[p].tolist() == found + [-5] * (8 - len(found)) + [len(found)]


@pytest.mark.parametrize(("op0", "op1"), [("multiply", "add"), ("add", "maximum"), ("subtract", "multiply")])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_tensor_scan(op0, op1, reverse):
    x, y, first = normal(4, 9), normal(4, 9, seed=1), normal(4, 1, seed=2)

    def kernel(a, b, c):
        t = empty((4, 9))
        nisa.tensor_tensor_scan(
            dst=t,
            data0=tile(a),
            data1=tile(b),
            initial=tile(c),
            op0=getattr(nl, op0),
            op1=getattr(nl, op1),
            reverse0=reverse,
        )
        return out(t)

    f, g = getattr(np, op0), getattr(np, op1)
    last, expected = first[:, 0], []
    for i in range(9):
        last = g(f(last, x[:, i]) if reverse else f(x[:, i], last), y[:, i])
        expected.append(last)
    assert np.allclose(run(kernel, x, y, first), np.stack(expected, axis=1), rtol=1e-6)


def test_cumulative_sum():
    x = normal(4, 300)

    def kernel(a):
        t, ones = empty((4, 300)), empty((4, 300))
        nisa.memset(dst=ones, value=1.0)
        nisa.tensor_tensor_scan(dst=t, data0=ones, data1=tile(a), initial=2.0, op0=nl.multiply, op1=nl.add)
        return out(t)

    assert np.allclose(run(kernel, x), np.cumsum(x.astype(np.float64), axis=1) + 2, rtol=1e-4, atol=1e-4)


def test_batch_statistics():
    x = normal(8, 701) * 3 + 1

    def kernel(a):
        data, stats, result = tile(a), empty((8, 2, 6)), empty((8, 2))
        nisa.bn_stats(dst=stats[:, 0], data=data[:, 0:512])
        nisa.bn_stats(dst=stats[:, 1], data=data[:, 512:701])
        nisa.bn_aggr(dst=result, data=stats)
        return out(result)

    expected = np.stack([x.mean(axis=1), x.var(axis=1)], axis=1)
    assert np.allclose(run(kernel, x), expected, rtol=1e-4)


def test_reduction_over_partitions():
    x = normal(100, 6)

    def kernel(a):
        t = empty((1, 6))
        nisa.tensor_partition_reduce(dst=t, op=nl.maximum, data=tile(a))
        return out(t)

    assert np.array_equal(run(kernel, x)[0], x.max(axis=0))
