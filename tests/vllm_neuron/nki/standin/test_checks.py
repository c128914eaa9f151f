"""What the hardware can't do, and memory that nobody wrote: errors with kernel, argument, value, limit and line."""

import inspect

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError, OperationError
from vllm_neuron.nki.standin import last_counts, nisa, nl


def refuse(body, *arrays, match):
    with pytest.raises(KernelError, match=match) as caught:
        run(body, *arrays)
    return caught.value


def test_error_names_kernel_argument_value_limit_and_the_kernels_own_line():
    def reads_too_early(a):
        t = empty((4, 4))
        result = out(t)
        return result

    error = refuse(reads_too_early, normal(4, 4), match="stand-in")
    assert isinstance(error, OperationError)
    assert error.kernel == "reads_too_early"
    assert error.argument == "dma_copy.src"
    assert "sbuf_tensor[4, 4]" in error.value
    assert "written" in error.limit
    # The line is that of the innermost code outside the stand-in: the harness, which made the call.
    file, line = error.where.rsplit(":", 1)
    assert file.endswith("harness.py")
    source, start = inspect.getsourcelines(out)
    assert "dma_copy(dst=result" in source[int(line) - start]


@pytest.mark.parametrize(("partitions", "free"), [(129, 4), (256, 1)])
def test_partition_limit(partitions, free):
    refuse(lambda a: out(empty((partitions, free))), normal(2, 2), match=f"{partitions}.*at most 128 partitions")


def test_one_dimension_on_chip_is_refused():
    refuse(lambda a: out(empty((4,))), normal(2, 2), match="at least two dimensions")


@pytest.mark.parametrize("start", [1, 16, 33, 65])
def test_start_partitions(start):
    def body(a):
        t = empty((128, 4))
        nisa.memset(dst=t[start : start + 1], value=0.0)
        return a

    refuse(body, normal(2, 2), match=f"start partition {start}.*0, 32, 64 or 96")


@pytest.mark.parametrize(("start", "span"), [(32, 33), (64, 64), (96, 32)])
def test_partitions_from_a_start(start, span):
    limit = {32: 32, 64: 64, 96: 32}[start]

    def body(a):
        t = empty((128, 4))
        nisa.memset(dst=t[start : start + span], value=0.0)
        return a

    if span <= limit:
        run(body, normal(2, 2))
    else:
        refuse(body, normal(2, 2), match=f"{span} partitions from {start}.*at most {limit}")


def test_dma_starts_at_any_partition():
    def body(a):
        t = empty((128, 4))
        nisa.memset(dst=t, value=1.0)
        nisa.dma_copy(dst=t[5:7], src=a)
        return out(t)

    x = normal(2, 4)
    assert np.array_equal(run(body, x)[5:7], x)


@pytest.mark.parametrize("pattern", [[[0, 8], [1, 4]], [[8, 4], [1, 4]]])
def test_engines_neither_repeat_nor_skip_partitions(pattern):
    def body(a):
        t, data = empty((pattern[0][1], 4)), tile(a)
        nisa.tensor_copy(dst=t, src=data.ap(pattern=pattern))
        return out(t)

    refuse(body, normal(8, 4), match="partition stride")


def test_partitions_must_agree():
    def body(a):
        t = empty((4, 4))
        nisa.tensor_copy(dst=t, src=tile(a))
        return out(t)

    refuse(body, normal(8, 2), match=r"4 partitions of 4 elements")


def test_nothing_broadcasts():
    def body(a, b):
        t = empty((8, 4))
        nisa.tensor_tensor(dst=t, data1=tile(a), data2=tile(b), op=nl.add)
        return out(t)

    refuse(body, normal(8, 4), normal(8, 1), match=r"tensor_tensor\.data2.*don't broadcast")


def test_hbm_is_out_of_reach_of_engines():
    def body(a):
        t = empty((8, 4))
        nisa.tensor_copy(dst=t, src=a)
        return out(t)

    refuse(body, normal(8, 4), match=r"tensor_copy\.src.*in hbm.*sbuf or psum")


def test_gpsimd_has_no_psum_and_only_one_operand_may_be_there():
    def gpsimd(a):
        t = empty((8, 4))
        nisa.tensor_copy(dst=t, src=tile(a, buffer=nl.psum), engine=nisa.engine.gpsimd)
        return out(t)

    def both(a):
        t, p = empty((8, 4)), tile(a, buffer=nl.psum)
        nisa.tensor_tensor(dst=t, data1=p, data2=p, op=nl.add)
        return out(t)

    refuse(gpsimd, normal(8, 4), match="GpSimd has no access to PSUM")
    refuse(both, normal(8, 4), match="at most one of the two in PSUM")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t: nisa.tensor_tensor(t, t, t, "add"), "operator of nki.language"),
        (lambda t: nisa.tensor_tensor(t, t, t, nl.exp), "binary operator"),
        (lambda t: nisa.activation(t, nl.add, t), "activation function"),
        (lambda t: nisa.activation(t, nl.negative, t), "activation function of the scalar engine"),
        (lambda t: nisa.tensor_scalar(t, t, nl.add, "1"), r"operand0.*a number or a tensor \(8, 1\)"),
        (lambda t: nisa.tensor_scalar(t, t, nl.add, t), r"\(8, 1\)"),
        (lambda t: nisa.tensor_scalar(t, t, nl.add, 1.0, operand1=2.0), "operator op1"),
        (lambda t: nisa.tensor_scalar(t, t, nl.maximum, 1.0, engine=nisa.engine.scalar), "scalar engine"),
        (lambda t: nisa.tensor_tensor(t, t, t, nl.add, engine=nisa.engine.tensor), "one of vector, gpsimd"),
        (lambda t: nisa.memset(t, "x"), "constant number"),
        (lambda t: nisa.memset(t.view(nl.int32), 0.5), "integer for a tensor of int32"),
        (lambda t: nisa.memset(t.view(nl.int32), 0.0), "integer for a tensor of int32"),
        (lambda t: nisa.tensor_scalar(t, t, nl.add, t.view(nl.bfloat16)[:, 0:1]), "float32 tensor"),
        (lambda t: nisa.tensor_copy(t, 3), r"tensor_copy\.src.*got 'int'"),
        (lambda t: nisa.activation(t, nl.exp, t, scale=t.view(nl.int32)[:, 0:1]), r"activation\.scale.*float32"),
        (lambda t: empty((8, 4), "float128"), "element type"),
        (lambda t: nl.ndarray((8, 4), nl.float32, buffer="smem"), "nl.sbuf"),
        (lambda t: nl.program_id(1), "only dimension"),
    ],
)
def test_wrong_arguments(call, match):
    def body(a):
        call(tile(a))
        return a

    refuse(body, normal(8, 4), match=match)


def test_reading_one_element_that_was_never_written():
    def body(a):
        t = nl.ndarray((4, 6), dtype=nl.float32, buffer=nl.sbuf, name="scores")
        nisa.dma_copy(dst=t[:, 0:3], src=a)
        nisa.dma_copy(dst=t[:, 4:6], src=a[:, 0:2])
        u = empty((4, 6))
        nisa.tensor_copy(dst=u, src=t)
        return out(u)

    refuse(body, normal(4, 3), match=r"4 elements of scores\[4, 6\].*never written, the first at \(0, 3\)")


def test_parts_that_were_written_may_be_read():
    def body(a):
        t = empty((4, 6))
        nisa.dma_copy(dst=t[:, 0:3], src=a)
        u = empty((4, 3))
        nisa.tensor_copy(dst=u, src=t[:, 0:3])
        for i in range(3):
            nisa.tensor_copy(dst=t[:, 3 + i], src=u[:, i])
        return out(t)

    x = normal(4, 3)
    assert np.array_equal(run(body, x), np.concatenate([x, x], axis=1))


def test_written_flags_through_views_of_another_size():
    def half(a):
        t = empty((4, 4))
        nisa.memset(dst=t.view(nl.bfloat16)[:, 0:4], value=0.0)
        return out(t[:, 0:2])

    def none(a):
        t = empty((4, 4))
        nisa.memset(dst=t.view(nl.bfloat16)[:, 0:4], value=0.0)
        return out(t.view(nl.uint8)[:, 7:9])

    assert (run(half, normal(2, 2)) == 0).all()
    refuse(none, normal(2, 2), match="4 elements")


def test_outputs_must_be_written_whole():
    def body(a):
        result = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.shared_hbm, name="result")
        nisa.dma_copy(dst=result[0:3], src=tile(a)[0:3])
        return result

    error = refuse(body, normal(4, 4), match=r"return.*4 of 16 elements of result\[4, 4\]")
    assert error.kernel == "body"


def test_gather_from_rows_that_were_never_written():
    def body(a, i):
        h = nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.private_hbm)
        nisa.dma_copy(dst=h[0:4], src=a)
        t = empty((2, 4))
        nisa.dma_copy(dst=t, src=h.ap(pattern=[[4, 2], [1, 4]], vector_offset=tile(i), indirect_dim=0))
        return out(t)

    x = normal(4, 4)
    assert np.array_equal(run(body, x, np.array([[3], [0]], np.int32)), x[[3, 0]])
    refuse(body, x, np.array([[3], [5]], np.int32), match="never written")


def test_sbuf_capacity():
    def fits(a):
        tiles = [empty((128, 24 * 1024), nl.bfloat16) for _ in range(4)]
        nisa.memset(dst=tiles[0], value=0.0)
        return a

    def too_much(a):
        tiles = [empty((128, 24 * 1024), nl.bfloat16) for _ in range(5)]
        nisa.memset(dst=tiles[0], value=0.0)
        return a

    run(fits, normal(2, 2))
    assert last_counts().peak_sbuf == 192 * 1024
    refuse(too_much, normal(2, 2), match=r"49152 bytes a partition.*196608 in use.*196608 bytes a partition of sbuf")


def test_psum_banks():
    def fits(a):
        tiles = [empty((128, 512), buffer=nl.psum) for _ in range(7)]
        tiles += [empty((128, 128), buffer=nl.psum) for _ in range(4)]
        return a

    def too_many(a):
        tiles = [empty((128, 300), buffer=nl.psum) for _ in range(9)]
        return tiles[0]

    run(fits, normal(2, 2))
    assert last_counts().peak_psum == 16 * 1024
    refuse(too_many, normal(2, 2), match=r"1200 bytes.*8 banks of 2048")


def test_a_tensor_is_freed_with_its_last_reference():
    def body(a):
        for _ in range(50):
            t = empty((128, 30 * 1024), nl.bfloat16)
            nisa.memset(dst=t, value=0.0)
            p = empty((128, 512), buffer=nl.psum)
            nisa.memset(dst=p, value=0.0)
        return a

    run(body, normal(2, 2))
    # Two at a time: Python makes the new tile before it drops the old one.
    assert last_counts().peak_sbuf == 2 * 60 * 1024
    assert last_counts().peak_psum == 2 * 2048


def at(byte, free=64, partitions=128, first=0, name="", buffer=None):
    return nl.ndarray((partitions, free), nl.float32, buffer=buffer or nl.sbuf, name=name, address=(first, byte))


def test_manual_addresses_count_by_what_they_cover():
    def body(a, end=192 * 1024):
        tiles = [at(i * 256) for i in range(4)]
        again = at(128)
        del tiles, again
        tiles = [at(end - 256), at(0), at(128), empty((128, 64))]
        assert len(tiles) == 4
        return a

    run(body, normal(2, 2))
    assert last_counts().peak_sbuf == 4 * 256
    refuse(lambda a: body(a, 192 * 1024 + 256), normal(2, 2), match="at byte 196608")


def test_a_write_to_an_overlapping_address_ends_what_was_there():
    def body(a, read):
        first, second = at(0, name="first"), at(128, name="second")
        nisa.memset(dst=first, value=1.0)
        nisa.memset(dst=second[:, 0:16], value=2.0)
        return out(read(first, second))

    x = normal(2, 2)
    assert (run(lambda a: body(a, lambda f, s: f[:, 0:32]), x) == 1).all()
    assert (run(lambda a: body(a, lambda f, s: f[:, 48:64]), x) == 1).all()
    assert (run(lambda a: body(a, lambda f, s: s[:, 0:16]), x) == 2).all()
    overlapping = "overwritten by second.*manual addresses"
    refuse(lambda a: body(a, lambda f, s: f[:, 31:33]), x, match=f"128 elements of first.*{overlapping}")
    refuse(lambda a: body(a, lambda f, s: f), x, match=f"{128 * 16} elements of first.*{overlapping}")


def test_overlaps_need_common_partitions_and_live_tensors():
    def body(a):
        low, high = at(0, partitions=64), at(0, partitions=64, first=64)
        nisa.memset(dst=low, value=1.0)
        nisa.memset(dst=high, value=2.0)
        bank = at(0, buffer=nl.psum)
        nisa.memset(dst=bank, value=3.0)
        return out(low), out(high), out(bank)

    results = run(body, normal(2, 2))
    assert [r[0, 0] for r in results] == [1, 2, 3]

    def reused(a):
        results = []
        for i in range(4):
            t = at(0, partitions=8, name=f"t{i}")
            nisa.memset(dst=t, value=float(i))
            results.append(out(t))
        return results

    assert [r[0, 0] for r in run(reused, normal(2, 2))] == [0, 1, 2, 3]


def test_double_buffers_that_are_read_in_time_are_fine_and_late_reads_are_not():
    def body(a, late):
        tiles = []
        for i in range(4):
            t = at(256 * (i % 2), partitions=8, name=f"tile{i}")
            nisa.dma_copy(dst=t, src=a)
            tiles.append(t)
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
            nisa.tensor_tensor(dst=t, data1=t, data2=tiles[i - late if i >= late else 0], op=nl.add)
        return out(t)

    run(lambda a: body(a, 1), normal(8, 64))
    refuse(lambda a: body(a, 2), normal(8, 64), match="tile0.*overwritten by tile2")


def test_manual_address_sets_the_first_partition():
    def body(a):
        t = nl.ndarray((32, 8), nl.float32, buffer=nl.sbuf, address=(16, 0))
        nisa.memset(dst=t, value=0.0)
        return a

    refuse(body, normal(2, 2), match="start partition 16")


def test_new_tensors_hold_a_sentinel():
    def body(a):
        assert np.isnan(empty((2, 2), nl.bfloat16).array.astype(np.float32)).all()
        assert (empty((2, 2), nl.int32).array == 4).all()
        return a

    run(body, normal(2, 2))


def test_branching_on_a_tensor_is_refused():
    def body(a):
        if tile(a):
            return a
        return None

    refuse(body, normal(1, 1), match="truth value")


def test_free_sizes_of_an_access():
    def dimensions(a):
        t = empty((8, 2, 2, 2, 2, 2))
        nisa.memset(dst=t, value=0.0)
        return a

    def elements(a):
        t = empty((8, 66000), nl.uint8)
        nisa.memset(dst=t, value=0)
        return a

    refuse(dimensions, normal(2, 2), match="6 dimensions.*4 free dimensions")
    refuse(elements, normal(2, 2), match="66000 elements.*at most 65536")
