"""Two programs of a logical core: exchange, barriers, shared memory, and no deadlocks."""

import threading

import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import nisa, nl


def test_sendrecv_swaps_tiles():
    def body(x):
        me = nl.program_id(0)
        mine, theirs = tile(x[me]), empty((4, 8))
        for pipe in range(3):
            nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=pipe)
        result = nl.ndarray((2, 4, 8), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result[me], src=theirs)
        return result

    x = normal(2, 4, 8)
    assert np.array_equal(run(body, x, programs=2), x[::-1])


def test_barrier_orders_writes_and_reads_of_shared_memory():
    def body(x):
        me = nl.program_id(0)
        shared = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm, name="shared")
        result = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=shared[me], src=x[me])
        nisa.core_barrier(data=shared, cores=(0, 1))
        nisa.dma_copy(dst=result[me], src=shared[1 - me])
        return result

    x = normal(2, 4)
    for _ in range(20):
        assert np.array_equal(run(body, x, programs=2), x[::-1])


def test_private_memory_is_private():
    def body(x):
        private = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.private_hbm)
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=private, src=x)
        nisa.core_barrier(data=x, cores=(0, 1))
        if nl.program_id(0) == 1:
            empty_ = tile(private)
            del empty_
        return x

    with pytest.raises(KernelError, match="never written"):
        run(body, normal(2, 4), programs=2)


def test_shared_allocations_must_match():
    def body(x):
        nl.ndarray((2, 4 + nl.program_id(0)), dtype=nl.float32, buffer=nl.shared_hbm)
        return x

    with pytest.raises(KernelError, match="as the other program allocated"):
        run(body, normal(2, 4), programs=2)


def test_names_used_twice_match_by_order():
    def body(x):
        me = nl.program_id(0)
        results = []
        for i in range(2):
            h = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm, name="h")
            nisa.dma_copy(dst=h[me], src=x[i])
            results.append(h)
        return results

    x = normal(2, 4)
    first, second = run(body, x, programs=2)
    assert np.array_equal(first, x[[0, 0]]) and np.array_equal(second, x[[1, 1]])


def wait_for_nobody(x):
    if nl.program_id(0) == 1:
        return x
    nisa.core_barrier(data=x, cores=(0, 1))
    return x


def fail_while_the_other_waits(x):
    if nl.program_id(0) == 1:
        raise ValueError("broken on purpose")
    nisa.core_barrier(data=x, cores=(0, 1))
    return x


def wait_in_two_places(x):
    me = nl.program_id(0)
    t = tile(x)
    if me == 0:
        nisa.core_barrier(data=x, cores=(0, 1))
    else:
        nisa.sendrecv(src=t, dst=t, send_to_rank=0, recv_from_rank=0, pipe_id=0)
    return x


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (wait_for_nobody, "returned without doing so"),
        (fail_while_the_other_waits, "broken on purpose"),
        (wait_in_two_places, "both programs at the same place"),
    ],
)
def test_no_deadlock(body, message):
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(KernelError, match=message):
            run(body, normal(2, 4), programs=2)
    assert threading.active_count() == before


@pytest.mark.parametrize("kind, message", [(Exception, "body: got 'Odd: '"), (BaseException, "program 1")])
def test_an_unusual_exception_in_the_second_program_is_no_success(monkeypatch, kind, message):
    class Odd(kind):
        pass

    def body(x):
        if nl.program_id(0) == 1:
            raise Odd
        return x

    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    with pytest.raises(KernelError, match=message):
        run(body, normal(2, 4), programs=2)


@pytest.mark.parametrize(
    "call",
    [lambda t, a: nisa.core_barrier(data=a), lambda t, a: nisa.sendrecv(t, t, 1, 1, 0)],
    ids=["barrier", "sendrecv"],
)
def test_one_program_has_nobody_to_meet(call):
    with pytest.raises(KernelError, match="two programs"):
        run(lambda a: call(tile(a), a), normal(2, 4))


def test_a_barrier_of_one_program():
    def body(x):
        nisa.core_barrier(x, (0), engine=nisa.engine.dma)
        return x

    run(body, normal(2, 4))
    with pytest.raises(KernelError, match=r"\(0, 1\)"):
        run(body, normal(2, 4), programs=2)


def test_sendrecv_needs_the_other_rank_and_equal_tiles():
    def ranks(x):
        t = tile(x)
        nisa.sendrecv(src=t, dst=t, send_to_rank=nl.program_id(0), recv_from_rank=0, pipe_id=0)
        return x

    def shapes(x):
        t, u = tile(x), empty((2, 5))
        other = 1 - nl.program_id(0)
        nisa.sendrecv(src=t, dst=u, send_to_rank=other, recv_from_rank=other, pipe_id=0)
        return x

    for body, message in ((ranks, "other program"), (shapes, "shape")):
        with pytest.raises(KernelError, match=message):
            run(body, normal(2, 4), programs=2)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("barrier", ["none", "other", "same"])
def test_reading_what_the_other_program_wrote_takes_a_barrier_on_it(barrier, scattered):
    written = threading.Event()

    def body(x, other, rows):
        me = nl.program_id(0)
        shared = nl.ndarray((4, 3), dtype=nl.float32, buffer=nl.shared_hbm, name="shared")
        if me == 0:
            view = shared.ap(pattern=[[3, 4], [1, 3]], vector_offset=tile(rows)) if scattered else shared
            nisa.dma_copy(dst=view, src=tile(x))
            written.set()
        written.wait(10)
        if barrier != "none":
            nisa.core_barrier(data=shared if barrier == "same" else other, cores=(0, 1))
        if me == 1:
            tile(shared[1:3])
        return shared

    arrays = normal(4, 3), normal(2, 2), np.array([[3], [2], [1], [0]], np.int32)
    if barrier == "same":
        run(body, *arrays, programs=2)
    else:
        with pytest.raises(KernelError, match=r"program 0 wrote.*core_barrier"):
            run(body, *arrays, programs=2)


def test_each_program_reads_its_own_writes():
    def body(x):
        me = nl.program_id(0)
        shared = nl.ndarray((2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=shared[me], src=x[me])
        t = tile(shared[me : me + 1])
        nisa.dma_copy(dst=x[me], src=t)
        tile(x[me : me + 1])
        return shared

    for _ in range(5):
        run(body, normal(2, 4), programs=2)


def test_a_barrier_is_on_shared_memory():
    with pytest.raises(KernelError, match="shared HBM"):
        run(lambda a: nisa.core_barrier(tile(a)), normal(2, 4), programs=2)
