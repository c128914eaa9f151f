"""Costs on the roofline, and the trace of a call."""

import json

import numpy as np
import pytest

from vllm_neuron.errors import ConfigError
from vllm_neuron.nki.bounds import Bound
from vllm_neuron.nki.cost import TRN2, TRN3, bound_of, chip, cost, counted, least
from vllm_neuron.nki.standin import counting, jit, nisa, nl
from vllm_neuron.nki.trace import schedule, scheduled_seconds, trace, write_trace


@jit
def product(a, b):
    """``a[K, M].T @ b[K, N]`` in tiles of 128 x 512, b read once for all."""
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=b.dtype, buffer=nl.shared_hbm)
    rows = m // nl.num_programs(0)
    first = nl.program_id(0) * rows
    for column in range(n // 512):
        right = []
        for i in range(k // 128):
            t = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=b[nl.ds(i * 128, 128), nl.ds(column * 512, 512)])
            right.append(t)
        for row in range(rows // 128):
            at = nl.ds(first + row * 128, 128)
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for i in range(k // 128):
                left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a[nl.ds(i * 128, 128), at])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right[i])
            result = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=acc)
            nisa.dma_copy(dst=out[at, nl.ds(column * 512, 512)], src=result)
    return out


A = np.ones((256, 256), np.float32)
B = np.ones((256, 512), np.float32)


def call(grid=1):
    with counting(events=True) as collected:
        result = product[grid](A, B)
    assert (result == 256).all()
    return collected.calls[0]


@pytest.fixture(scope="module")
def calls():
    return {1: call(1), 2: call(2)}


def test_chips_are_documented():
    for core in (TRN2, TRN3):
        assert "AWS Neuron documentation" in core.source
        # The clock and a 128 x 128 array give the documented TFLOPS of a core, rounded to whole ones.
        assert 128 * 128 * 2 * core.clock_hz["tensor"] == pytest.approx(core.bf16_flops, rel=0.01)
        assert core.fp32_flops == pytest.approx(core.bf16_flops / 4, rel=0.02)
        assert core.balance == pytest.approx(core.bf16_flops / core.hbm_bytes_per_second)
    assert TRN3.hbm_bytes_per_second > TRN2.hbm_bytes_per_second
    assert chip("trn2") is TRN2
    with pytest.raises(ConfigError, match="trn3"):
        chip("trn4")


def test_bound_counts_tensors_once_and_products_at_full_rate():
    bound = bound_of([A, B, None], [np.empty((256, 512), np.float32)], [(256, 256, 512)], itemsize=4)
    assert bound.hbm_bytes == 4 * (256 * 256 + 256 * 512 + 256 * 512)
    assert bound.tensor_cycles == 4 * 256 * 256 * 512 / (128 * 128)
    assert bound_of([A], [], [(256, 256, 512)]).tensor_cycles == 256 * 256 * 512 / (128 * 128)


@pytest.mark.parametrize("grid", [1, 2])
def test_cost_beside_the_roofline(calls, grid):
    counts = calls[grid]
    bound = bound_of([A, B], [np.empty((256, 512), np.float32)], [(256, 256, 512)], itemsize=4)
    found = cost(counts, bound, TRN2)
    # Each program reads the right matrix for itself.
    traffic = 4 * (256 * 256 + 256 * 512 * grid + 256 * 512)
    assert counts.hbm_traffic == traffic
    assert found.counted.seconds["hbm"] == pytest.approx(traffic / TRN2.hbm_bytes_per_second / grid)
    assert found.counted.seconds["tensor"] == pytest.approx(4 * 4 * 512 / 2.4e9 / grid)
    assert found.least.limit == found.counted.limit == "hbm"
    assert found.ratio == found.slowdown == pytest.approx(1.4 if grid == 2 else 1.0)
    text = found.as_dict()
    json.dumps(text)
    assert text["least_us"]["tensor"] == pytest.approx(1e6 * found.least.seconds["tensor"])
    assert text["counts"]["matmul_cycles"] == counts.matmul_cycles and "events" not in text["counts"]


def test_the_limit_follows_the_work():
    bound = Bound(hbm_bytes=10**6, tensor_cycles=10.0)
    estimate = least(bound, TRN2)
    assert estimate.limit == "hbm"
    assert estimate.total == pytest.approx(1e6 / TRN2.hbm_bytes_per_second)
    assert least(bound, TRN3).total < estimate.total
    assert least(bound, TRN2, programs=2).total == pytest.approx(estimate.total / 2)


def test_cost_without_a_bound(calls):
    found = cost(calls[1], None, TRN2)
    assert found.ratio is None and found.slowdown is None and found.as_dict()["least_us"] is None
    assert found.counted.total == counted(calls[1], TRN2).total > 0


@pytest.mark.parametrize("grid", [1, 2])
def test_schedule_keeps_engines_and_dependencies_in_order(calls, grid):
    placed = schedule(calls[grid], TRN2)
    assert len(placed) == sum(calls[grid].instructions.values())
    for program in range(grid):
        mine = [p for p in placed if p[0].program == program]
        ends: dict[str, float] = {}
        ready: dict[int, float] = {}
        for event, start, duration in mine:
            assert start >= ends.get(event.engine, 0.0) - 1e-15
            assert all(start >= ready.get(storage, 0.0) - 1e-15 for storage in event.reads)
            ends[event.engine] = start + duration
            ready.update(dict.fromkeys(event.writes, start + duration))
    products = [p for p in placed if p[0].name == "nc_matmul"]
    assert min(start for _, start, _ in products) > 0
    assert products[0][2] == pytest.approx(4 * 512 / 2.4e9)
    # No schedule is shorter than the busiest engine.
    assert scheduled_seconds(calls[grid], TRN2) >= counted(calls[grid], TRN2).total * 0.999


def test_engines_overlap(calls):
    total = sum(duration for _, _, duration in schedule(calls[1], TRN2))
    assert scheduled_seconds(calls[1], TRN2) < 0.98 * total


@pytest.mark.parametrize("grid", [1, 2])
def test_trace_is_what_chrome_reads(calls, tmp_path, grid):
    path = tmp_path / "trace.json"
    write_trace(path, [calls[grid], calls[grid]], TRN2)
    found = json.loads(path.read_text())
    assert "not a measurement" in found["otherData"]["notice"]
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 2 * sum(calls[grid].instructions.values())
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["args"]["estimated"] for e in events)
    assert {e["pid"] for e in events} == set(range(grid))
    names = {e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"dma", "tensor", "vector"} <= names
    first = max(e["ts"] + e["dur"] for e in events if e["args"]["call"] == 0)
    assert min(e["ts"] for e in events if e["args"]["call"] == 1) >= first - 1e-9


def test_a_call_without_events_is_refused():
    with counting() as collected:
        product(A, B)
    with pytest.raises(ConfigError, match="events=True"):
        trace(collected.calls, TRN2)


@jit
def unequal(x):
    """Program 0 has more to do before the barrier than program 1."""
    shared = nl.ndarray((2, 64, 512), dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id(0)
    t = nl.ndarray((64, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    for _ in range(1 if me else 20):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=0.0)
    nisa.dma_copy(dst=shared[me], src=t)
    nisa.core_barrier(data=shared, cores=(0, 1))
    nisa.dma_copy(dst=t, src=shared[1 - me])
    nisa.sendrecv(src=t, dst=t, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    return shared


def test_programs_wait_for_each_other():
    with counting(events=True) as collected:
        unequal[2](np.ones((64, 512), np.float32))
    placed = schedule(collected.calls[0], TRN2)
    assert len(placed) == sum(collected.calls[0].instructions.values())
    for name in ("core_barrier", "sendrecv"):
        starts = {event.program: start for event, start, _ in placed if event.name == name}
        assert starts[0] == starts[1] > 0
    barrier = next(start for event, start, _ in placed if event.name == "core_barrier")
    busy = max(start + duration for event, start, duration in placed if event.name == "tensor_scalar")
    assert barrier >= busy
    after = [start for event, start, _ in placed if event.name == "dma_copy" and event.direction == "hbm>sbuf"]
    assert sum(start >= barrier for start in after) == 2
