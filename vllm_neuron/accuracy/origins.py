"""Which parameters of a Hugging Face model hold the tensors of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def origins(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, tuple[str, ...]]:
    """Match saved tensors with parameters by value: the same one, a slice of a stack, or several side by side."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    by_shape: dict[tuple[int, ...], list[tuple[str, Tensor]]] = {}
    for name, value in own.items():
        by_shape.setdefault(tuple(sorted(value.shape)), []).append((name, value))
    rows, numbers = _Index({k: _sums(v) for k, v in own.items() if v.dim()}), _Index(own)
    return {
        key: _same(value, by_shape) or _holders_of_rows(value, rows) or numbers.holders(value)
        for key, value in saved.items()
    }


def _sums(value: Tensor) -> Tensor:
    """A sum of each row, each number times a whole number of its own: it tells rows apart where single numbers, in
    bfloat16, are all over the model."""
    if not value.is_floating_point():
        return value
    factors = torch.randint(1, 1 << 12, value.shape[-1:], generator=torch.Generator().manual_seed(value.shape[-1]))
    return (value.detach().double() * factors).sum(-1)


def _holders_of_rows(value: Tensor, index: _Index) -> tuple[str, ...]:
    """The tensors that have the first row of ``value``, or its first column, among their rows."""
    if value.dim() == 0 or not value.is_floating_point():
        return ()
    first = value.reshape(-1, value.shape[-1])
    found = index.holders(_sums(first[:1]))
    return found or (index.holders(_sums(first[:, 0][None])) if value.dim() > 1 else ())


def _same(value: Tensor, by_shape: Mapping[tuple[int, ...], list[tuple[str, Tensor]]]) -> tuple[str, ...]:
    """The parameter that is the tensor, or its transpose."""
    for name, other in by_shape.get(tuple(sorted(value.shape)), ()):
        if value.shape == other.shape and torch.equal(value, other.to(value.dtype)):
            return (name,)
        if value.dim() == 2 and value.t().shape == other.shape and torch.equal(value.t(), other.to(value.dtype)):
            return (name,)
    return ()


class _Index:
    """Every number of some tensors, sorted, with the tensor that it is in."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        floats = [(name, value.detach().flatten().double()) for name, value in tensors.items() if value.numel() > 1]
        floats = [(name, value) for name, value in floats if tensors[name].is_floating_point()]
        self.names = [name for name, _ in floats]
        owners = torch.cat([torch.full((len(value),), k) for k, (_, value) in enumerate(floats)])
        self.numbers, order = torch.cat([value for _, value in floats]).sort()
        self.owners = owners[order]

    def holders(self, value: Tensor) -> tuple[str, ...]:
        """The tensors that the first number of ``value`` is in."""
        if value.dim() == 0 or not value.is_floating_point():
            return ()
        probe = value.flatten()[0].double()
        first = int(torch.searchsorted(self.numbers, probe))
        last = int(torch.searchsorted(self.numbers, probe, right=True))
        return tuple(dict.fromkeys(self.names[int(k)] for k in self.owners[first:last]))
