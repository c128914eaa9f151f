"""How two tensors are compared: relative error by token, nothing forgiven."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.errors import NonFiniteError, ShapeError


def rows(x: Tensor) -> Tensor:
    """[..., D] -> float32 [T, D]; a batch of one is dropped."""
    return x.detach().float().reshape(-1, x.shape[-1])


def rel_err(found: Tensor, expected: Tensor, what: str) -> float:
    """``|found - expected| / |expected|``: the worst token's, or the whole tensor's if that is larger.

    Args:
        found, expected: [..., D], the same after :func:`rows`.
        what: what is compared, for the message.

    Raises:
        ShapeError: the shapes differ.
        NonFiniteError: the package, or the reference, gives NaN or infinity.
    """
    found, expected = rows(found), rows(expected)
    if found.shape != expected.shape:
        raise ShapeError(what, list(found.shape), f"{list(expected.shape)}, as the reference gives")
    if not torch.isfinite(expected).all():
        raise NonFiniteError(f"{what}, reference", "NaN or infinity", "finite numbers", "The reference is of no use.")
    if not torch.isfinite(found).all():
        bad = int((~torch.isfinite(found)).any(-1).sum())
        raise NonFiniteError(what, f"NaN or infinity in {bad} of {len(found)} tokens", "finite numbers")
    difference, size = (found - expected).norm(dim=-1), expected.norm(dim=-1)
    # A row of zeros must be zeros; anything else there is an error without bound.
    each = torch.where(size > 0, difference / size, torch.where(difference > 0, torch.inf, 0.0))
    whole = difference.norm() / size.norm() if size.any() else each.max()
    return float(torch.maximum(each.max(), whole))
