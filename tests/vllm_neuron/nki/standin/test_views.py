"""Views of tensors: the same elements as NumPy's, and no way outside."""

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import nisa, nl


def test_indexing_keeps_partitions_on_chip_and_drops_dimensions_in_hbm():
    def kernel(a):
        t = empty((4, 6, 5))
        shapes = [
            a[1].shape,
            a[1, 2].shape,
            a[1, 2, 3].shape,
            a[..., 3].shape,
            t[1].shape,
            t[1, 2].shape,
            t[1, 2, 3].shape,
            t[:, 2, 3].shape,
            t[..., nl.ds(1, 2)].shape,
            t[0:4:2, 1:6:2].shape,
        ]
        assert shapes == [
            (6, 5),
            (5,),
            (1,),
            (4, 6),
            (1, 6, 5),
            (1, 5),
            (1, 1),
            (4, 1),
            (4, 6, 2),
            (2, 3, 5),
        ], shapes
        return a

    run(kernel, normal(4, 6, 5))


def test_views_are_those_of_numpy():
    x = normal(8, 6, 4)

    def kernel(a):
        t = tile(a)
        views = [
            t[2:7, 1::2, nl.ds(1, 3)],
            t.reshape((8, 3, 8)),
            t.reshape((8, 24))[:, 3:9],
            t.permute((0, 2, 1)),
            t.flatten_dims(1, 2),
            t.reshape_dim(1, (2, -1)),
            t.expand_dim(1).broadcast(1, 3),
            t[:, 0:1].squeeze_dim(1),
            t.slice(1, 1, 6, 2),
            t.select(2, 3),
            t.rearrange(("p", ("a", "b"), "c"), ("p", "c", ("a", "b")), {"a": 2}),
            t.rearrange(("p", ("a", "b"), "c"), ("p", "b", "a", "c"), {"a": 2}),
            t.ap(pattern=[[24, 8], [4, 6], [0, 2]], offset=1),
            t.view(nl.int32),
        ]
        return [copy(v) for v in views]

    def copy(v):
        result = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=v)
        return result

    expected = [
        x[2:7, 1::2, 1:4],
        x.reshape(8, 3, 8),
        x.reshape(8, 24)[:, 3:9],
        x.transpose(0, 2, 1),
        x.reshape(8, 24),
        x.reshape(8, 2, 3, 4),
        np.broadcast_to(x[:, None], (8, 3, 6, 4)),
        x[:, 0],
        x[:, 1:6:2],
        x[:, :, 3],
        x.transpose(0, 2, 1),
        x.reshape(8, 2, 3, 4).transpose(0, 2, 1, 3),
        np.broadcast_to(x[:, :, 1:2], (8, 6, 2)),
        x.view(np.int32),
    ]
    for i, (got, want) in enumerate(zip(run(kernel, x), expected, strict=True)):
        assert np.array_equal(got, want), i


def test_view_of_a_wider_and_a_narrower_type():
    x = normal(4, 6)

    def kernel(a):
        bytes_ = tile(a).view(nl.uint8)
        assert bytes_.shape == (4, 24)
        part = bytes_[:, 4:12].view(nl.float32)
        return out(part)

    assert np.array_equal(run(kernel, x), x[:, 1:3])


def test_reshape_of_a_strided_view_works_where_no_copy_is_needed():
    x = normal(4, 6, 5)

    def kernel(a):
        strided = tile(a)[:, 1:4]
        return out(strided.reshape((4, 15))), out(tile(a)[:, :, 0:1].reshape((4, 2, 3)))

    merged, split = run(kernel, x)
    assert np.array_equal(merged, x[:, 1:4].reshape(4, 15))
    assert np.array_equal(split, x[:, :, 0].reshape(4, 2, 3))

    def impossible(a):
        return out(tile(a)[:, :, 0:3].reshape((4, 18)))

    with pytest.raises(KernelError, match="without a copy"):
        run(impossible, x)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda t: t[0:9], r"0:9.*inside 0:8"),
        (lambda t: t[:, -2:4], r"-2:4.*inside 0:6"),
        (lambda t: t[:, nl.ds(4, 3)], r"4:7.*inside 0:6"),
        (lambda t: t[:, 6], r"index 1.*got 6.*0 to 5"),
        (lambda t: t[:, 3:3], "non-empty"),
        (lambda t: t[0, 0, 0], "at most 2 indices"),
        (lambda t: t[:, 1.5], "integer"),
        (lambda t: t.reshape((4, 12)), "partition dimension 8 unchanged"),
        (lambda t: t.reshape((8, 7)), "48 elements"),
        (lambda t: t.permute((1, 0)), "partition dimension first"),
        (lambda t: t.ap(pattern=[[6, 8], [1, 7]]), "elements 0 to 47"),
        (lambda t: t.ap(pattern=[[6, 8], [1, 6]], offset=1), "reaches 1 to 48"),
        (lambda t: t.expand_dim(0), "free dimension"),
        (lambda t: t.broadcast(1, 2), "size 1"),
        (lambda t: t.view("float3"), "element type"),
        (lambda t: t[:, 0:5:2].view(nl.uint8), "contiguous"),
        (lambda t: t.rearrange(("p", ("a", "b")), ("p", "b", "a"), {"a": 4}), "product is 6"),
    ],
)
def test_views_outside_or_impossible_are_refused(view, message):
    def kernel(a):
        view(tile(a))
        return a

    with pytest.raises(KernelError, match=message):
        run(kernel, normal(8, 6))


def test_a_repeated_dimension_is_for_reading():
    def kernel(a):
        t = empty((8, 6))
        nisa.memset(dst=t.ap(pattern=[[6, 8], [0, 3], [1, 2]]), value=1.0)
        return out(t)

    with pytest.raises(KernelError, match="one place for each element"):
        run(kernel, normal(8, 6))


def test_pattern_of_a_view():
    def kernel(a):
        t = empty((8, 6, 4))
        assert t[:, 1:3].get_pattern() == [[24, 8], [4, 2], [1, 4]]
        assert t[:, 1:3].offset == 4
        assert t[:, 1:3].is_contiguous() and not t[:, :, 1:3].is_contiguous()
        assert not t.is_indirect()
        return a

    run(kernel, normal(8, 6))
