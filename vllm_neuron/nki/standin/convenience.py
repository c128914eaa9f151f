"""Operators of ``nki.language`` called on tiles: ``nl.add(a, b)`` gives a new SBUF tile."""

from __future__ import annotations

from typing import Any

from vllm_neuron.nki.standin.core import fail
from vllm_neuron.nki.standin.ops import Op
from vllm_neuron.nki.standin.tensor import Tensor


def apply(op: Op, x: Any, y: Any = None, dtype: Any = None) -> Tensor:
    """``op(x, y)`` or ``op(x)`` on tiles and numbers, through the vector or scalar engine."""
    from vllm_neuron.nki.standin.isa.scalar import activation
    from vllm_neuron.nki.standin.isa.vector import tensor_scalar, tensor_tensor
    from vllm_neuron.nki.standin.language import ndarray

    tile = x if isinstance(x, Tensor) else y
    if not isinstance(tile, Tensor):
        fail(f"{op.name}.x", type(x).__name__, "at least one tile")
    dst = ndarray(tile.shape, dtype or tile.dtype)
    if op.arity == 1:
        if y is not None:
            fail(f"{op.name}.y", type(y).__name__, "one operand")
        activation(dst, op, tile)
    elif isinstance(x, Tensor) and isinstance(y, Tensor):
        if y.shape != x.shape and y.size == x.shape[0]:
            tensor_scalar(dst, x, op, y)
        else:
            tensor_tensor(dst, x, y, op)
    else:
        tensor_scalar(dst, tile, op, y if tile is x else x, reverse0=tile is not x)
    return dst
