"""Scans, batch statistics and the reduction over partitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.ops import Op, operator
from vllm_neuron.nki.standin.tensor import Tensor

BN_STATS_FREE = 512
_PARTITION_OPS = ("add", "maximum", "bitwise_or", "bitwise_and")


def tensor_tensor_scan(
    dst: Tensor,
    data0: Tensor,
    data1: Tensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """``r[i] = op1(op0(data0[i], r[i - 1]), data1[i])`` along the flattened free dimensions, from ``initial``."""
    core = current("tensor_tensor_scan")
    a = o.source(data0, "tensor_tensor_scan.data0")
    b = o.source(data1, "tensor_tensor_scan.data1")
    t = o.target(dst, "tensor_tensor_scan.dst")
    o.same(a, b, "tensor_tensor_scan.data1")
    o.same(a, t, "tensor_tensor_scan.dst")
    if a.place == "psum" and b.place == "psum":
        fail("tensor_tensor_scan.data1", f"{a!r} and {b!r}", "at most one of the two in PSUM")
    first = operator(op0, "tensor_tensor_scan.op0", 2)
    second = operator(op1, "tensor_tensor_scan.op1", 2)
    x = o.fp32(a).reshape(a.shape[0], -1)
    y = o.fp32(b).reshape(a.shape[0], -1)
    start = np.broadcast_to(np.asarray(o.scalar(initial, a, "tensor_tensor_scan.initial")).reshape(-1), (a.shape[0],))
    o.store(t, _scan(first, second, x, y, start, reverse0, reverse1))
    core.tick("vector", "tensor_tensor_scan", max(FIXED_CYCLES, o.elements(a)))


def _scan(op0: Op, op1: Op, x: Any, y: Any, start: Any, reverse0: bool, reverse1: bool) -> Any:
    if op0.name == "multiply" and op1.name == "add" and (x == 1.0).all():
        y = y.copy()
        y[:, 0] += start
        return np.add.accumulate(y, axis=1)
    result = np.empty_like(x)
    last = start
    for i in range(x.shape[1]):
        inner = op0.run(last, x[:, i]) if reverse0 else op0.run(x[:, i], last)
        last = op1.run(y[:, i], inner) if reverse1 else op1.run(inner, y[:, i])
        result[:, i] = last
    return result


def bn_stats(dst: Tensor, data: Tensor, name: str | None = None) -> None:
    """Count, mean and variance times count of the even and of the odd elements: ``dst[P, 6]``; 512 elements at most."""
    core = current("bn_stats")
    d = o.source(data, "bn_stats.data")
    t = o.target(dst, "bn_stats.dst")
    if o.elements(d) > BN_STATS_FREE:
        fail("bn_stats.data", f"{o.elements(d)} elements a partition", f"at most {BN_STATS_FREE}")
    if t.shape[0] != d.shape[0] or o.elements(t) != 6:
        fail("bn_stats.dst", t.shape, f"({d.shape[0]}, 6)")
    values = o.fp32(d).reshape(d.shape[0], -1)
    out = np.zeros((d.shape[0], 6), np.float32)
    for i, part in enumerate((values[:, 0::2], values[:, 1::2])):
        n = part.shape[1]
        if n:
            mean = part.mean(axis=1, dtype=np.float32)
            out[:, 3 * i] = n
            out[:, 3 * i + 1] = mean
            out[:, 3 * i + 2] = np.square(part - mean[:, None]).sum(axis=1, dtype=np.float32)
    o.store(t, out)
    core.tick("vector", "bn_stats", max(FIXED_CYCLES, o.elements(d)))


def bn_aggr(dst: Tensor, data: Tensor, name: str | None = None) -> None:
    """Mean and variance ``dst[P, 2]`` from triples (count, mean, variance * count) of ``bn_stats``."""
    core = current("bn_aggr")
    d = o.source(data, "bn_aggr.data")
    t = o.target(dst, "bn_aggr.dst")
    if o.elements(d) % 3:
        fail("bn_aggr.data", f"{o.elements(d)} elements a partition", "triples")
    if t.shape[0] != d.shape[0] or o.elements(t) != 2:
        fail("bn_aggr.dst", t.shape, f"({d.shape[0]}, 2)")
    triples = o.fp32(d).reshape(d.shape[0], -1, 3)
    count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
    total = count.sum(axis=1)
    centre = (count * mean).sum(axis=1) / total
    variance = (spread + count * np.square(mean - centre[:, None])).sum(axis=1) / total
    o.store(t, np.stack([centre, variance], axis=1))
    core.tick("vector", "bn_aggr", max(FIXED_CYCLES, o.elements(d)))


def tensor_partition_reduce(dst: Tensor, op: Any, data: Tensor, name: str | None = None) -> None:
    """Reduce over the partitions into ``dst[1, free...]`` (add, maximum, bitwise_or, bitwise_and); slow on hardware."""
    core = current("tensor_partition_reduce")
    d = o.source(data, "tensor_partition_reduce.data", o.SBUF)
    t = o.target(dst, "tensor_partition_reduce.dst", o.SBUF)
    operation = operator(op, "tensor_partition_reduce.op", 2)
    if operation.name not in _PARTITION_OPS:
        fail("tensor_partition_reduce.op", repr(operation), f"one of {', '.join(_PARTITION_OPS)}")
    if t.shape[0] != 1 or o.elements(t) != o.elements(d):
        fail("tensor_partition_reduce.dst", t.shape, f"1 partition of {o.elements(d)} elements")
    assert operation.reduces is not None
    values = d.array if operation.kind == "bits" else o.fp32(d)
    o.store(t, operation.reduces.reduce(values, axis=0))
    core.tick("gpsimd", "tensor_partition_reduce", max(FIXED_CYCLES, d.size))
