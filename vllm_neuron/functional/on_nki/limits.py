"""What the kernels' ``supports`` rules share: element types, layouts of matrices, room in SBUF."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.functional.operation import YES, Support, no
from vllm_neuron.functional.weight import Matrix, PackedWeight
from vllm_neuron.nki.backend import logical_cores

TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Bytes a partition that transposed activations may take; the rest of SBUF is for weights and results in flight.
KEPT_BYTES = 128 * 1024
PARTITIONS = 128


def grid() -> int:
    """NeuronCores of a logical core; a constant of a compiled graph."""
    return logical_cores()


def one_type(name: str, x: Tensor, **others: Tensor | None) -> Support:
    """Whether x has an element type that kernels take, and the other tensors have the same."""
    if x.dtype not in TYPES:
        return no(f"{name}.dtype", x.dtype, "float32, bfloat16 or float16")
    if x.numel() == 0:
        return no(f"{name}.shape", tuple(x.shape), "at least one element")
    for other, tensor in others.items():
        if tensor is not None and tensor.dtype != x.dtype:
            return no(f"{other}.dtype", tensor.dtype, f"{x.dtype}, as {name}")
    return YES


def shape(name: str, tensor: Tensor | None, expected: tuple[int, ...]) -> Support:
    """Whether a tensor has just this shape, or is None: kernels do not broadcast."""
    if tensor is not None and tuple(tensor.shape) != expected:
        return no(f"{name}.shape", tuple(tensor.shape), str(expected))
    return YES


def vector(name: str, tensor: Tensor | None, size: int) -> Support:
    """Whether a bias or a norm's weight is one contiguous row of this size, or is None."""
    answer = shape(name, tensor, (size,))
    if answer.ok and tensor is not None and not tensor.is_contiguous():
        return no(f"{name}.stride()", tensor.stride(), "a contiguous tensor")
    return answer


def plain(name: str, matrix: Matrix) -> Support:
    """Whether a weight is a tensor whose rows are inputs and lie one after the other."""
    if isinstance(matrix, PackedWeight):
        return no(name, "a weight packed for the CPU", "a plain tensor")
    if matrix.ndim != 2 or matrix.numel() == 0:
        return no(f"{name}.shape", tuple(matrix.shape), "two dimensions of at least 1, inputs and outputs")
    if not matrix.is_contiguous():
        return no(f"{name}.stride()", matrix.stride(), "a contiguous [in, out] matrix, as Linear.lay_out makes it")
    return YES


def dense(matrix: Matrix) -> Tensor:
    """The tensor that :func:`plain` said yes to."""
    assert isinstance(matrix, Tensor)
    return matrix


def room(what: str, sizes: tuple[int, ...], tokens: int, dtype: torch.dtype) -> Support:
    """Whether activations of these sizes, for up to 128 tokens, fit in SBUF transposed."""
    blocks = sum(-(-size // PARTITIONS) for size in sizes)
    at_once = max(1, min(tokens, PARTITIONS))
    most = KEPT_BYTES // (at_once * dtype.itemsize)
    if blocks > most:
        return no(what, sum(sizes), f"at most {most * PARTITIONS} for {at_once} tokens of {dtype}")
    return YES


def first_no(*answers: Support) -> Support:
    """The first refusal, or yes."""
    return next((answer for answer in answers if not answer.ok), YES)
