"""The scalar engine: activation functions with scale, bias and row sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from vllm_neuron.nki.standin.core import Core, current, fail
from vllm_neuron.nki.standin.counts import FIXED_CYCLES
from vllm_neuron.nki.standin.isa import operands as o
from vllm_neuron.nki.standin.isa.enums import reduce_cmd as commands
from vllm_neuron.nki.standin.ops import operator
from vllm_neuron.nki.standin.tensor import Tensor

_RESETS = (commands.reset, commands.reset_reduce)
_ADDS = (commands.reduce, commands.reset_reduce)


def activation(
    dst: Tensor,
    op: Any,
    data: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: commands = commands.idle,
    name: str | None = None,
) -> None:
    """``dst = op(data * scale + bias)`` in fp32; scale and bias are numbers or ``[P, 1]`` tensors.

    With ``reduce_cmd`` the row sums go to the engine's registers (reset, reduce, reset_reduce); ``reduce_res`` reads
    them.
    """
    core = current("activation")
    d = o.source(data, "activation.data")
    t = o.target(dst, "activation.dst")
    o.same(t, d, "activation.data")
    function = operator(op, "activation.op", 1)
    if function.kind != "activation":
        fail("activation.op", repr(function), "an activation function of the scalar engine")
    value = o.fp32(d)
    if isinstance(scale, Tensor) or scale != 1.0:
        value = value * _factor(scale, d, "activation.scale", ("float32",))
    if bias is not None:
        value = value + _factor(bias, d, "activation.bias", ("float32", "float16", "bfloat16"))
    value = function.run(value)
    n = d.shape[0]
    if reduce_cmd is not commands.idle:
        if reduce_op is not None and operator(reduce_op, "activation.reduce_op", 2).name != "add":
            fail("activation.reduce_op", reduce_op, "nl.add")
        if reduce_op is None and reduce_cmd in _ADDS:
            fail("activation.reduce_op", None, f"nl.add with {reduce_cmd}")
        registers = core.scalar_registers
        if reduce_cmd in _RESETS:
            registers[:] = 0
            core.was_reset.add("scalar")
        if reduce_cmd in _ADDS:
            registers[:n] += value.sum(axis=tuple(range(1, value.ndim)), dtype=np.float32)
    o.store(t, value)
    core.tick("scalar", "activation", max(FIXED_CYCLES, d.size // n))
    if reduce_res is not None:
        _registers(core, reduce_res, n)
        core.tick("scalar", "activation.reduce_res", FIXED_CYCLES)


def _factor(value: Any, d: Tensor, argument: str, kinds: tuple[str, ...]) -> Any:
    if isinstance(value, Tensor) and value.dtype not in kinds:
        fail(argument, value.dtype, " or ".join(kinds))
    return o.scalar(value, d, argument)


def _registers(core: Core, reduce_res: Tensor, n: int) -> None:
    r = o.target(reduce_res, "activation.reduce_res")
    if r.shape[0] != n or r.size != n:
        fail("activation.reduce_res", r.shape, f"({n}, 1)")
    if "scalar" not in core.was_reset:
        fail("activation.reduce_res", "registers never reset", "reduce_cmd.reset or reset_reduce before the first read")
    o.store(r, core.scalar_registers[:n].copy())


def activation_reduce(
    dst: Tensor,
    op: Any,
    data: Tensor,
    reduce_op: Any,
    reduce_res: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> None:
    """``activation`` with ``reduce_cmd.reset_reduce``: ``reduce_res[P, 1]`` = the row sums of the result."""
    activation(dst, op, data, bias, scale, reduce_op, reduce_res, commands.reset_reduce, name)
