"""Vector-engine instructions that select elements by a predicate or a range."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.enums import reduce_cmd as commands
from vllm_neuron.nki.standin.ops import OPS, operator
from vllm_neuron.nki.standin.tensor import Tensor

FP32_MIN = np.float32(np.finfo(np.float32).min)
_PREDICATES = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "bool_")
_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")


def _maximum(core: Core, values: Any, reduce_res: Tensor | None, command: Any, reduce_op: Any, what: str) -> None:
    """Row maximum into the vector engine's registers and from there into ``reduce_res``."""
    if operator(reduce_op, f"{what}.reduce_op", 2).name != "maximum":
        fail(f"{what}.reduce_op", reduce_op, "nl.maximum")
    n = values.shape[0]
    registers = core.vector_registers
    if command in (commands.reset, commands.reset_reduce):
        registers[:] = -np.inf
        core.was_reset.add("vector")
    if command in (commands.reduce, commands.reset_reduce):
        registers[:n] = np.maximum(registers[:n], values.reshape(n, -1).max(axis=1))
    if reduce_res is None:
        return
    r = o.target(reduce_res, f"{what}.reduce_res")
    if r.shape[0] != n or r.size != n:
        fail(f"{what}.reduce_res", r.shape, f"({n}, 1)")
    if command is commands.idle or "vector" not in core.was_reset:
        fail(f"{what}.reduce_res", command, "reduce_cmd.reset_reduce or reduce, after a reset")
    o.store(r, registers[:n].copy())


def range_select(
    dst: Tensor,
    on_true_tile: Tensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tensor,
    bound1: Tensor,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_res: Tensor | None = None,
    reduce_op: Any = OPS["maximum"],
    range_start: float = 0.0,
    on_false_value: float = float(FP32_MIN),
    name: str | None = None,
) -> None:
    """Keep element j where ``op0(j + range_start, bound0[p])`` and ``op1(j + range_start, bound1[p])``, else -FLT_MAX.

    The hardware ignores ``on_false_value`` (always -FLT_MAX) and ``reduce_cmd`` (always ``reset_reduce``).
    ``reduce_res[P, 1]`` gets the row maximum.
    """
    core = current("range_select")
    d = o.source(on_true_tile, "range_select.on_true_tile")
    t = o.target(dst, "range_select.dst")
    o.same(t, d, "range_select.on_true_tile")
    if d.dtype.kind != "float":
        fail("range_select.on_true_tile", d.dtype, "a floating-point type")
    index = np.float32(range_start) + np.arange(o.elements(d), dtype=np.float32)
    keep: Any = True
    for i, (op, bound) in enumerate(((comp_op0, bound0), (comp_op1, bound1))):
        compare = operator(op, f"range_select.comp_op{i}", 2)
        if compare.name not in _COMPARISONS:
            fail(f"range_select.comp_op{i}", repr(compare), f"one of {', '.join(_COMPARISONS)}")
        if not isinstance(bound, Tensor) or bound.dtype != "float32":
            fail(f"range_select.bound{i}", getattr(bound, "dtype", bound), f"a float32 tensor ({d.shape[0]}, 1)")
        keep = keep & compare.run(index[None, :], o.scalar(bound, d, f"range_select.bound{i}").reshape(-1, 1))
    values = np.where(keep, o.fp32(d).reshape(d.shape[0], -1), FP32_MIN)
    _maximum(core, values, reduce_res, commands.reset_reduce, reduce_op, "range_select")
    o.store(t, values)
    core.tick("vector", "range_select", max(FIXED_CYCLES, o.elements(d)))


def _predicate(predicate: Tensor, like: Tensor, reverse: bool, what: str) -> Any:
    p = o.source(predicate, f"{what}.predicate")
    o.same(like, p, f"{what}.predicate")
    if p.dtype not in _PREDICATES:
        fail(f"{what}.predicate", p.dtype, "an integer type")
    chosen = o.like(p.array, like) != 0
    return ~chosen if reverse else chosen


def select_reduce(
    dst: Tensor,
    predicate: Tensor,
    on_true: Tensor,
    on_false: Any,
    reduce_res: Tensor | None = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = OPS["maximum"],
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """``dst = on_true`` where the predicate is not zero, else ``on_false`` (a number or ``[P, 1]``); row maximum."""
    core = current("select_reduce")
    d = o.source(on_true, "select_reduce.on_true")
    t = o.target(dst, "select_reduce.dst")
    o.same(t, d, "select_reduce.on_true")
    if d.dtype in ("tfloat32", "int32", "uint32"):
        fail("select_reduce.on_true", d.dtype, "a type other than tfloat32, int32 and uint32")
    if isinstance(predicate, Tensor) and predicate.place == d.place == "psum":
        fail("select_reduce.predicate", repr(predicate), "at most one of predicate and on_true in PSUM")
    keep = _predicate(predicate, d, reverse_pred, "select_reduce")
    values = np.where(keep, o.fp32(d), o.scalar(on_false, d, "select_reduce.on_false"))
    _maximum(core, values, reduce_res, reduce_cmd, reduce_op, "select_reduce")
    o.store(t, values)
    core.tick("vector", "select_reduce", max(FIXED_CYCLES, o.elements(d)))


def tensor_copy_predicated(
    dst: Tensor, src: Any, predicate: Tensor, reverse_pred: bool = False, name: str | None = None
) -> None:
    """Copy ``src`` (a tile of the same type, or a number) to ``dst`` where the predicate is not zero."""
    core = current("tensor_copy_predicated")
    t = o.target(dst, "tensor_copy_predicated.dst")
    if isinstance(predicate, Tensor) and predicate.dtype not in ("uint8", "uint16", "uint32"):
        fail("tensor_copy_predicated.predicate", predicate.dtype, "uint8, uint16 or uint32")
    keep = _predicate(predicate, t, reverse_pred, "tensor_copy_predicated")
    if isinstance(src, Tensor):
        s = o.source(src, "tensor_copy_predicated.src")
        o.same(t, s, "tensor_copy_predicated.src")
        if s.dtype != t.dtype:
            fail("tensor_copy_predicated.src", s.dtype, f"{t.dtype}, the type of dst")
        if s.place == predicate.place == "psum":
            fail("tensor_copy_predicated.predicate", repr(predicate), "at most one of src and predicate in PSUM")
        values: Any = o.like(s.array, t)
    else:
        values = np.asarray(o.scalar(src, t, "tensor_copy_predicated.src")).astype(t.dtype.numpy)
    np.copyto(t.array, values, where=keep)
    if t.storage.written is not True or t.storage.neighbours:
        t.mark(keep)
    core.tick("vector", "tensor_copy_predicated", max(FIXED_CYCLES, o.elements(t)))
