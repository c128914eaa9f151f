"""Elementwise instructions: copies, operators on tiles and scalars, reductions along the free dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.enums import engine as engines
from vllm_neuron.nki.standin.ops import OPS, Op, operator
from vllm_neuron.nki.standin.tensor import Tensor

_NAMES = {engines.vector: "vector", engines.scalar: "scalar", engines.gpsimd: "gpsimd"}
_HALVES = ("bfloat16", "float16")


def on_engine(engine: Any, allowed: tuple[str, ...], what: str, *tensors: Tensor) -> str:
    """The name of the engine that runs an instruction.

    Raises:
        KernelError: an engine that hasn't the instruction, or GpSimd with a tensor in PSUM.
    """
    if engine is engines.unknown:
        return allowed[0]
    name = _NAMES.get(engine)
    if name is None or name not in allowed:
        fail(f"{what}.engine", engine, f"one of {', '.join(allowed)}")
    if name == "gpsimd":
        for t in tensors:
            if t.place == "psum":
                fail(f"{what}.engine", f"gpsimd with {t!r}", "tensors in SBUF: GpSimd has no access to PSUM")
    return name


def _done(core: Core, where: str, what: str, data: Tensor, speed: int = 1) -> None:
    core.tick(where, what, max(FIXED_CYCLES, data.size // data.shape[0] // speed))


def _speed(t: Tensor, s: Tensor) -> int:
    """Elements a cycle and lane of a copy or tensor-scalar on the vector engine of trn2 and trn3.

    Four for 16-bit floats in SBUF that are contiguous in the innermost dimension; two when they are not, or when one
    of the two is in PSUM; else one (AWS Neuron documentation, Trainium2 Architecture Guide for NKI).
    """
    if t.dtype not in _HALVES or s.dtype not in _HALVES:
        return 1
    contiguous = t.steps[-1] == t.dtype.itemsize and s.steps[-1] == s.dtype.itemsize
    in_psum = (t.place == "psum") + (s.place == "psum")
    if in_psum == 0:
        return 4 if contiguous else 2
    return 2 if in_psum == 1 and contiguous else 1


def memset(dst: Tensor, value: Any, engine: Any = engines.unknown, name: str | None = None) -> None:
    """Fill ``dst`` (SBUF or PSUM) with a constant."""
    core = current("memset")
    t = o.target(dst, "memset.dst")
    where = on_engine(engine, ("vector", "gpsimd"), "memset", t)
    if not isinstance(value, bool | int | float | np.generic):
        fail("memset.value", type(value).__name__, "a constant number")
    if t.dtype.kind == "int" and isinstance(value, float | np.floating):
        fail("memset.value", value, f"an integer for a tensor of {t.dtype}")
    t.array.fill(value)
    t.mark()
    _done(core, where, "memset", t)


def tensor_copy(dst: Tensor, src: Tensor, engine: Any = engines.unknown, name: str | None = None) -> None:
    """``dst = src``: same partitions and elements; a bit copy for equal types, else through fp32."""
    core = current("tensor_copy")
    t = o.target(dst, "tensor_copy.dst")
    s = o.source(src, "tensor_copy.src")
    o.same(t, s, "tensor_copy.src")
    where = on_engine(engine, ("vector", "scalar", "gpsimd"), "tensor_copy", t, s)
    array = s.array
    if t.dtype == s.dtype:
        t.array[...] = o.like(array, t)
        t.mark()
    else:
        o.store(t, o.fp32(s))
    _done(core, where, "tensor_copy", t, _speed(t, s) if where == "vector" else 1)


def tensor_tensor(
    dst: Tensor, data1: Tensor, data2: Tensor, op: Any, engine: Any = engines.unknown, name: str | None = None
) -> None:
    """``dst = data1 op data2``, without broadcasting; fp32 inside, exact for 32-bit integers and bitwise operators."""
    core = current("tensor_tensor")
    a = o.source(data1, "tensor_tensor.data1")
    b = o.source(data2, "tensor_tensor.data2")
    t = o.target(dst, "tensor_tensor.dst")
    o.same(a, b, "tensor_tensor.data2")
    o.same(t, a, "tensor_tensor.data1")
    if a.place == "psum" and b.place == "psum":
        fail("tensor_tensor.data2", f"{a!r} and {b!r}", "at most one of the two in PSUM")
    where = on_engine(engine, ("vector", "gpsimd"), "tensor_tensor", t, a, b)
    operation = operator(op, "tensor_tensor.op", 2)
    if operation.kind == "bits":
        o.store(t, o.bits(operation, a.array, o.like(b.array, a), "tensor_tensor.data1"))
    elif o.exact(a, b, t):
        o.store(t, operation.run(a.array, o.like(b.array, a)))
    else:
        o.store(t, operation.run(o.fp32(a), o.like(o.fp32(b), a)))
    half = t.dtype in _HALVES and a.dtype in _HALVES and b.dtype in _HALVES and a.place == b.place == "sbuf"
    _done(core, where, "tensor_tensor", t, 2 if half and where == "vector" else 1)


def _stage(op: Op, data: Any, operand: Any, reverse: bool, argument: str) -> Any:
    if op.arity == 1:
        return op.run(data)
    if op.kind == "bits":
        return o.bits(op, operand, data, argument) if reverse else o.bits(op, data, operand, argument)
    return o.binary(op, operand, data) if reverse else o.binary(op, data, operand)


def _raw_scalar(value: Any, like: Tensor, argument: str) -> Any:
    if isinstance(value, Tensor):
        vector = o.source(value, argument)
        return vector.array.reshape((like.shape[0],) + (1,) * (len(like.shape) - 1))
    return like.array.dtype.type(int(value))


def tensor_scalar(
    dst: Tensor,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with numbers or ``[P, 1]`` tensors; ``reverse`` swaps the sides."""
    core = current("tensor_scalar")
    d = o.source(data, "tensor_scalar.data")
    t = o.target(dst, "tensor_scalar.dst")
    o.same(t, d, "tensor_scalar.data")
    where = on_engine(engine, ("vector", "scalar", "gpsimd"), "tensor_scalar", t, d)
    if where == "scalar":
        _on_scalar_engine(op0, op1)
    result = _scalars(d, ((op0, operand0, reverse0), (op1, operand1, reverse1)), "tensor_scalar")
    o.store(t, result)
    _done(core, where, "tensor_scalar", t, _speed(t, d) if where == "vector" else 1)


def _on_scalar_engine(op0: Any, op1: Any) -> None:
    pair = (operator(op0, "tensor_scalar.op0", 2).name, operator(op1, "tensor_scalar.op1", 2).name if op1 else None)
    if pair not in (("multiply", "add"), ("multiply", None), ("add", None)):
        fail("tensor_scalar.op0", pair, "multiply and add, multiply, or add on the scalar engine")


def _scalars(d: Tensor, stages: Sequence[tuple[Any, Any, bool]], what: str) -> Any:
    """The value of one or two scalar stages."""
    raw = operator(stages[0][0], f"{what}.op0", 2).kind == "bits"
    value = d.array if raw else o.fp32(d)
    for i, (op, operand, reverse) in enumerate(stages):
        if op is None:
            if operand is not None:
                fail(f"{what}.operand{i}", operand, f"an operator op{i} for it")
            continue
        operation = operator(op, f"{what}.op{i}", 2)
        if (operation.kind == "bits") != raw:
            fail(f"{what}.op{i}", repr(operation), "both operators bitwise, or none")
        argument = f"{what}.operand{i}"
        if not raw and isinstance(operand, Tensor) and what != "scalar_tensor_tensor" and operand.dtype != "float32":
            fail(argument, repr(operand), "a number or a float32 tensor")
        side = _raw_scalar(operand, d, argument) if raw else o.scalar(operand, d, argument)
        value = _stage(operation, value, side, reverse, argument)
    return value


def scalar_tensor_tensor(
    dst: Tensor,
    data: Tensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Tensor,
    reverse0: bool = False,
    reverse1: bool = False,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> None:
    """``dst = (data op0 operand0) op1 operand1`` with a scalar (or ``[P, 1]``) first and a tile second operand."""
    core = current("scalar_tensor_tensor")
    d = o.source(data, "scalar_tensor_tensor.data")
    b = o.source(operand1, "scalar_tensor_tensor.operand1")
    t = o.target(dst, "scalar_tensor_tensor.dst")
    o.same(d, b, "scalar_tensor_tensor.operand1")
    o.same(t, d, "scalar_tensor_tensor.data")
    where = on_engine(engine, ("vector", "gpsimd"), "scalar_tensor_tensor", t, d, b)
    value = _scalars(d, ((op0, operand0, reverse0),), "scalar_tensor_tensor")
    second = operator(op1, "scalar_tensor_tensor.op1", 2)
    side = o.like(b.array if second.kind == "bits" else o.fp32(b), d)
    o.store(t, _stage(second, value, side, reverse1, "scalar_tensor_tensor.operand1"))
    _done(core, where, "scalar_tensor_tensor", t)


def _axes(axis: Any, t: Tensor, what: str) -> tuple[int, ...]:
    """Normalised free axes: the last ones, without a gap."""
    wanted = (axis,) if isinstance(axis, int) else tuple(axis)
    ndim = len(t.shape)
    axes = sorted(a % ndim for a in wanted)
    if not axes or axes != list(range(ndim - len(axes), ndim)) or 0 in axes:
        fail(f"{what}.axis", axis, f"the last free axes of a tile of {ndim} dimensions, never the partition")
    return tuple(axes)


def reduce_free(op: Op, values: Any, axes: tuple[int, ...], argument: str) -> Any:
    """Reduction with an operator over axes."""
    if op.reduces is None:
        fail(argument, repr(op), "an operator that reduces: add, subtract, multiply, maximum, minimum or bitwise")
    if op.name == "subtract":
        flat = values.reshape(*values.shape[: axes[0]], -1)
        return 2 * flat[..., :1].sum(-1) - flat.sum(-1)
    return op.reduces.reduce(values, axis=axes)


def tensor_reduce(
    dst: Tensor,
    op: Any,
    data: Tensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> None:
    """Reduce trailing free axes of ``data`` with ``op`` into ``dst``; ``negate`` changes the sign of the result."""
    core = current("tensor_reduce")
    d = o.source(data, "tensor_reduce.data")
    t = o.target(dst, "tensor_reduce.dst")
    operation = operator(op, "tensor_reduce.op", 2)
    axes = _axes(axis, d, "tensor_reduce")
    kept = d.size
    for a in axes:
        kept //= d.shape[a]
    if t.shape[0] != d.shape[0] or t.size != kept:
        fail("tensor_reduce.dst", t.shape, f"{d.shape[0]} partitions of {kept // d.shape[0]} elements")
    values = d.array if operation.kind == "bits" or o.exact(d, t) else o.fp32(d)
    result = reduce_free(operation, values, axes, "tensor_reduce.op")
    o.store(t, np.negative(result) if negate else result)
    _done(core, "vector", "tensor_reduce", d)


def tensor_scalar_reduce(
    dst: Tensor,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tensor,
    reverse0: bool = False,
    name: str | None = None,
) -> None:
    """``dst = data op0 operand0`` and ``reduce_res[P, 1]`` = its reduction over all free axes."""
    core = current("tensor_scalar_reduce")
    d = o.source(data, "tensor_scalar_reduce.data")
    t = o.target(dst, "tensor_scalar_reduce.dst")
    o.same(t, d, "tensor_scalar_reduce.data")
    value = _scalars(d, ((op0, operand0, reverse0),), "tensor_scalar_reduce")
    row(reduce_res, d, reduce_op, value, "tensor_scalar_reduce")
    o.store(t, value)
    _done(core, "vector", "tensor_scalar_reduce", d)


def row(reduce_res: Tensor, d: Tensor, reduce_op: Any, value: Any, what: str) -> None:
    """Write the reduction of ``value`` over all free axes into ``reduce_res``."""
    r = o.target(reduce_res, f"{what}.reduce_res")
    if r.shape[0] != d.shape[0] or r.size != d.shape[0]:
        fail(f"{what}.reduce_res", r.shape, f"({d.shape[0]}, 1)")
    operation = operator(reduce_op, f"{what}.reduce_op", 2)
    o.store(r, reduce_free(operation, value, tuple(range(1, value.ndim)), f"{what}.reduce_op"))


def reciprocal(dst: Tensor, data: Tensor, engine: Any = engines.unknown, name: str | None = None) -> None:
    """``dst = 1 / data`` in fp32."""
    core = current("reciprocal")
    d = o.source(data, "reciprocal.data")
    t = o.target(dst, "reciprocal.dst")
    o.same(t, d, "reciprocal.data")
    where = on_engine(engine, ("vector", "scalar"), "reciprocal", t, d)
    o.store(t, OPS["reciprocal"].run(o.fp32(d)))
    _done(core, where, "reciprocal", t)
