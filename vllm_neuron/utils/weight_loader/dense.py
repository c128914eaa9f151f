"""How one rank's shard of a parameter is cut out of checkpoint tensors.

A loader gets the checkpoint's tensors as lazy slices (``safetensors``' ``get_slice``) and a rank, and reads only that
rank's bytes. Sizes named ``shard_...``, ``q_size``, ``kv_size`` are those of one rank; the checkpoint's own sizes follow
and are checked. A size that does not fit is an error, never a short slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError


class LazySlice(Protocol):
    """What a loader reads from: a tensor in a file, or a view of one."""

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        ...

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part, by slices."""
        ...


Transform = Callable[[Sequence[LazySlice], int], Tensor]


@dataclass(frozen=True)
class SafetensorsWeightLoader:
    """A loader: ``transform(slices, rank)`` gives the rank's tensor."""

    transform: Transform

    def load(self, slices: Sequence[LazySlice], rank: int) -> Tensor:
        """Read the rank's shard of the parameter.

        Raises:
            CheckpointError: a shape that the loader was not made for.
        """
        return self.transform(slices, rank)


def set_weight_loader(parameter: Tensor, loader: SafetensorsWeightLoader) -> None:
    """Attach the loader to a parameter."""
    parameter.weight_loader = loader  # type: ignore[attr-defined]


def get_weight_loader(parameter: Tensor) -> SafetensorsWeightLoader:
    """The parameter's loader; by default every rank reads the whole tensor."""
    return getattr(parameter, "weight_loader", replicated_weight_loader())


class SliceView:
    """A lazy view of a part of a slice: reads compose, and nothing is read until the last one.

    Args:
        base: the tensor or another view.
        dim: dimension that is cut.
        start, stop: bounds along ``dim``.
    """

    def __init__(self, base: LazySlice, dim: int, start: int, stop: int) -> None:
        size = base.get_shape()[dim]
        if not 0 <= start <= stop <= size:
            raise CheckpointError("slice", (start, stop), f"bounds inside 0..{size} of dimension {dim}")
        self.base, self.dim, self.start, self.stop = base, dim, start, stop

    def get_shape(self) -> list[int]:
        """The view's shape."""
        shape = list(self.base.get_shape())
        shape[self.dim] = self.stop - self.start
        return shape

    def __getitem__(self, index: Any) -> Tensor:
        """Read a part of the view; ``index`` is a slice, or a tuple of slices, with step 1."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if Ellipsis in parts:
            parts = [slice(None)] * len(self.get_shape()) if parts == [Ellipsis] else parts
        parts += [slice(None)] * (len(self.get_shape()) - len(parts))
        begin, end, _ = parts[self.dim].indices(self.stop - self.start)
        parts[self.dim] = slice(self.start + begin, self.start + max(begin, end))
        return self.base[tuple(parts)]


def _read(source: LazySlice, dim: int, start: int, stop: int) -> Tensor:
    index = [slice(None)] * len(source.get_shape())
    index[dim] = slice(start, stop)
    return source[tuple(index)]


def _expect(source: LazySlice, dim: int, size: int, what: str) -> None:
    shape = source.get_shape()
    if dim >= len(shape) or shape[dim] != size:
        raise CheckpointError(f"{what}: shape", shape, f"size {size} along dimension {dim}")


def _one(slices: Sequence[LazySlice]) -> LazySlice:
    if len(slices) != 1:
        raise CheckpointError("checkpoint keys of one parameter", len(slices), "one key")
    return slices[0]


def _storage_dim(source: LazySlice, dim: int, transposed: bool) -> int:
    """The dimension in the file of dimension ``dim`` of the parameter."""
    return len(source.get_shape()) - 1 - dim if transposed else dim


def _oriented(part: Tensor, transposed: bool) -> Tensor:
    return part.t().contiguous() if transposed else part


def replicated_weight_loader() -> SafetensorsWeightLoader:
    """Every rank reads the whole tensor."""
    return SafetensorsWeightLoader(lambda slices, rank: _one(slices)[...])


def sharding_weight_loader(
    shard_dim: int, shard_size: int, num_shards: int, is_storage_transposed: bool = False, pad_shard: bool = False
) -> SafetensorsWeightLoader:
    """Rank r reads rows ``r * shard_size .. (r + 1) * shard_size`` along one dimension.

    Args:
        shard_dim: dimension of the parameter that is divided.
        shard_size: size of one rank's shard along it.
        num_shards: number of ranks; the checkpoint's size must be ``shard_size * num_shards``.
        is_storage_transposed: the checkpoint holds the matrix transposed.
        pad_shard: the checkpoint's size may be smaller; what is missing, at the end, is zeros.
    """

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        source = _one(slices)
        dim = _storage_dim(source, shard_dim, is_storage_transposed)
        size = source.get_shape()[dim]
        total = shard_size * num_shards
        if size != total and not (pad_shard and total - num_shards < size < total):
            _expect(source, dim, total, f"a tensor for {num_shards} ranks of {shard_size}")
        start = min(rank * shard_size, size)
        part = _read(source, dim, start, min(start + shard_size, size))
        return _oriented(_pad(part, dim, shard_size), is_storage_transposed)

    return SafetensorsWeightLoader(transform)


def sharding_weight_loader_with_padding(
    shard_dim: int,
    shard_size: int,
    num_shards: int,
    *,
    pad_dim: int,
    padded_size: int,
    unpadded_size: int,
    is_storage_transposed: bool = False,
) -> SafetensorsWeightLoader:
    """As :func:`sharding_weight_loader`, and another dimension filled up with zeros to ``padded_size``."""
    inner = sharding_weight_loader(shard_dim, shard_size, num_shards, is_storage_transposed)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        part = inner.load(slices, rank)
        if part.shape[pad_dim] != unpadded_size:
            raise CheckpointError("tensor to pad: shape", list(part.shape), f"{unpadded_size} along {pad_dim}")
        return _pad(part, pad_dim, padded_size)

    return SafetensorsWeightLoader(transform)


def _pad(part: Tensor, dim: int, size: int) -> Tensor:
    missing = size - part.shape[dim]
    if missing == 0:
        return part
    shape = list(part.shape)
    shape[dim] = missing
    return torch.cat((part, part.new_zeros(shape)), dim=dim)


def fused_qkv_weight_loader(
    q_size: int,
    kv_size: int,
    shard_dim: int,
    num_shards: int,
    is_storage_transposed: bool = False,
    num_kv_replicas: int = 1,
    *,
    v_size: int | None = None,
) -> SafetensorsWeightLoader:
    """A rank's query, key and value rows, joined in that order.

    The checkpoint has them as three tensors, or as one with all queries first, then all keys, then all values.

    Args:
        q_size, kv_size: rows of one rank's queries, and of its keys.
        shard_dim: dimension of the parameter that is divided.
        num_shards: number of ranks.
        is_storage_transposed: the checkpoint holds the matrices transposed.
        num_kv_replicas: neighbouring ranks that hold the same keys and values (more ranks than KV heads).
        v_size: rows of one rank's values, when unlike the keys'.
    """
    sizes = (q_size, kv_size, kv_size if v_size is None else v_size)
    replicas = (1, num_kv_replicas, num_kv_replicas)
    if num_shards % num_kv_replicas:
        raise CheckpointError("num_kv_replicas", num_kv_replicas, f"a divisor of {num_shards} ranks")
    totals = [size * num_shards // copies for size, copies in zip(sizes, replicas, strict=True)]

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        dim = _storage_dim(slices[0], shard_dim, is_storage_transposed)
        sources = _split_block(slices, dim, totals, "q, k and v")
        parts = []
        for source, size, total, copies in zip(sources, sizes, totals, replicas, strict=True):
            _expect(source, dim, total, "a q, k or v tensor")
            start = rank // copies * size
            parts.append(_read(source, dim, start, start + size))
        return _oriented(torch.cat(parts, dim=dim), is_storage_transposed)

    return SafetensorsWeightLoader(transform)


def fused_gate_up_weight_loader(
    shard_size: int, shard_dim: int, num_shards: int, is_storage_transposed: bool = False
) -> SafetensorsWeightLoader:
    """A rank's gate rows, then its up rows.

    The checkpoint has them as two tensors, or as one with all gate rows first.

    Args:
        shard_size: rows of one rank's gate, and of its up projection.
        shard_dim: dimension of the parameter that is divided.
        num_shards: number of ranks.
        is_storage_transposed: the checkpoint holds the matrices transposed.
    """
    totals = [shard_size * num_shards] * 2

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        dim = _storage_dim(slices[0], shard_dim, is_storage_transposed)
        parts = []
        for source in _split_block(slices, dim, totals, "gate and up"):
            _expect(source, dim, totals[0], "a gate or up tensor")
            parts.append(_read(source, dim, rank * shard_size, (rank + 1) * shard_size))
        return _oriented(torch.cat(parts, dim=dim), is_storage_transposed)

    return SafetensorsWeightLoader(transform)


def _split_block(slices: Sequence[LazySlice], dim: int, totals: Sequence[int], what: str) -> Sequence[LazySlice]:
    """The parts of a fused block as views, or the separate tensors as they are."""
    if len(slices) == len(totals):
        return slices
    block = _one(slices)
    _expect(block, dim, sum(totals), f"one block of {what}")
    starts = [sum(totals[:i]) for i in range(len(totals))]
    return [SliceView(block, dim, start, start + total) for start, total in zip(starts, totals, strict=True)]


def with_rank_override(loader: SafetensorsWeightLoader, rank: int) -> SafetensorsWeightLoader:
    """The loader, always as that rank: for a layer whose ranks are not the model's."""
    return SafetensorsWeightLoader(lambda slices, _: loader.load(slices, rank))
