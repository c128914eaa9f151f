"""How one rank's shard of a parameter is cut out of checkpoint tensors.

A loader gets the checkpoint's tensors as lazy slices (``safetensors``' ``get_slice``) and a rank, and reads only that
rank's bytes. Sizes named ``shard_size``, ``q_size``, ``kv_size`` are those of **one rank**; the checkpoint's own sizes
follow from them and the number of ranks, and are checked. A size that does not fit is an error, never a short slice.

Before a load each loader is tried once with the tensors' shapes alone (meta tensors), so a loader may not look at
numbers to decide what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.utils.weight_loader.slices import LazySlice, SliceView, along, expect_size, pad, read_joined, the_one

Transform = Callable[[Sequence[LazySlice], int], Tensor]


@dataclass(frozen=True)
class SafetensorsWeightLoader:
    """A loader: ``transform(slices, rank)`` gives the rank's tensor.

    Attributes:
        transform: see above.
        takes: ``(chosen, of)``: of a row with ``of`` alternatives this parameter takes those of the chosen indices
            alone (a bias on some of q, k and v); None for all.
        arrange: ``arrange(slices, layout)`` takes tensors of a named layout apart into those that ``transform`` knows;
            None for a parameter that has no layouts.
    """

    transform: Transform
    takes: tuple[tuple[int, ...], int] | None = None
    arrange: Callable[[Sequence[LazySlice], str], Sequence[LazySlice]] | None = None

    def load(self, slices: Sequence[LazySlice], rank: int, layout: str | None = None) -> Tensor:
        """Read the rank's shard of the parameter.

        Args:
            slices: the parameter's checkpoint tensors, in the order of its table row.
            rank: index of the rank, from 0.
            layout: how the tensors hold what the parameter joins, when its row says so.

        Raises:
            CheckpointError: a shape or a number of tensors that the loader was not made for.
            ConfigError: a rank outside the group, or a layout that the parameter can't have.
        """
        if layout is not None:
            if self.arrange is None:
                raise ConfigError("layout", layout, "none, for this parameter")
            slices = self.arrange(slices, layout)
        return self.transform(slices, rank)


def set_weight_loader(parameter: Tensor, loader: SafetensorsWeightLoader) -> None:
    """Attach the loader to a parameter."""
    parameter.weight_loader = loader  # type: ignore[attr-defined]


def get_weight_loader(parameter: Tensor) -> SafetensorsWeightLoader:
    """The parameter's loader; by default every rank reads the whole tensor."""
    loader: SafetensorsWeightLoader | None = getattr(parameter, "weight_loader", None)
    return replicated_weight_loader() if loader is None else loader


def _check(shard_dim: int, num_shards: int, **sizes: int) -> None:
    if shard_dim < 0:
        raise ConfigError("weight loader: shard_dim", shard_dim, "a dimension counted from 0")
    for name, value in {"num_shards": num_shards, **sizes}.items():
        if value < 1:
            raise ConfigError(f"weight loader: {name}", value, "1 or more")


def _check_rank(rank: int, num_shards: int) -> None:
    if not 0 <= rank < num_shards:
        raise ConfigError("weight loader: rank", rank, f"0 to {num_shards - 1}, one of {num_shards} shards")


def _storage_dim(source: LazySlice, dim: int, transposed: bool) -> int:
    """The dimension in the file of dimension ``dim`` of the parameter."""
    shape = source.get_shape()
    if dim >= len(shape) or (transposed and len(shape) > 2):
        allowed = "1 or 2 dimensions, to be read transposed" if transposed else f"more than {dim} dimensions"
        raise CheckpointError("checkpoint tensor: shape", shape, allowed)
    return len(shape) - 1 - dim if transposed else dim


def _oriented(part: Tensor, transposed: bool) -> Tensor:
    return part.t().contiguous() if transposed else part


def replicated_weight_loader() -> SafetensorsWeightLoader:
    """Every rank reads the whole tensor."""
    return SafetensorsWeightLoader(lambda slices, rank: the_one(slices)[...])


def sharding_weight_loader(
    shard_dim: int, shard_size: int, num_shards: int, is_storage_transposed: bool = False, pad_shard: bool = False
) -> SafetensorsWeightLoader:
    """Rank r reads rows ``r * shard_size .. (r + 1) * shard_size`` along one dimension.

    Args:
        shard_dim: dimension of the parameter that is divided.
        shard_size: size of one rank's shard along it.
        num_shards: number of ranks; the checkpoint's size must be ``shard_size * num_shards``.
        is_storage_transposed: the checkpoint holds the matrix transposed.
        pad_shard: the checkpoint's size may be smaller, as long as ``shard_size`` is its size divided by the ranks,
            rounded up. The rows that are missing, all at the end, are zeros. Without it a ragged size is refused.
    """
    _check(shard_dim, num_shards, shard_size=shard_size)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        _check_rank(rank, num_shards)
        source = the_one(slices)
        dim = _storage_dim(source, shard_dim, is_storage_transposed)
        size = source.get_shape()[dim]
        total = shard_size * num_shards
        if size != total and not (pad_shard and total - num_shards < size < total):
            expect_size(source, dim, total, f"a tensor for {num_shards} ranks of {shard_size}")
        start = min(rank * shard_size, size)
        part = source[along(source, dim, start, min(start + shard_size, size))]
        return _oriented(pad(part, dim, shard_size), is_storage_transposed)

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
    """As :func:`sharding_weight_loader`, and another dimension filled up with zeros.

    Args:
        shard_dim, shard_size, num_shards, is_storage_transposed: see :func:`sharding_weight_loader`.
        pad_dim: the other dimension of the parameter.
        padded_size: the parameter's size along it.
        unpadded_size: the checkpoint's size along it.
    """
    inner = sharding_weight_loader(shard_dim, shard_size, num_shards, is_storage_transposed)
    if pad_dim == shard_dim or pad_dim < 0:
        raise ConfigError("weight loader: pad_dim", pad_dim, f"a dimension other than shard_dim {shard_dim}")
    if padded_size < unpadded_size:
        raise ConfigError("weight loader: padded_size", padded_size, f"{unpadded_size} (unpadded_size) or more")

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        part = inner.load(slices, rank)
        if pad_dim >= part.dim() or part.shape[pad_dim] != unpadded_size:
            raise CheckpointError("tensor to pad: shape", list(part.shape), f"{unpadded_size} along {pad_dim}")
        return pad(part, pad_dim, padded_size)

    return SafetensorsWeightLoader(transform)


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

    The checkpoint has them as three tensors [q, k, v], or as one with all queries first, then all keys, then all
    values; each of the three is divided over the ranks.

    Args:
        q_size, kv_size: rows of one rank's queries, and of its keys (heads of the rank times head size).
        shard_dim: dimension of the parameter that is divided.
        num_shards: number of ranks. The checkpoint has ``q_size * num_shards`` rows of queries and
            ``kv_size * num_shards / num_kv_replicas`` of keys.
        is_storage_transposed: the checkpoint holds the matrices transposed.
        num_kv_replicas: neighbouring ranks that hold the same keys and values (more ranks than KV heads): rank r takes
            shard ``r // num_kv_replicas``.
        v_size: rows of one rank's values, when unlike the keys'.
    """
    sizes = (q_size, kv_size, kv_size if v_size is None else v_size)
    _check(shard_dim, num_shards, q_size=q_size, kv_size=kv_size, v_size=sizes[2], num_kv_replicas=num_kv_replicas)
    if num_shards % num_kv_replicas:
        raise ConfigError("weight loader: num_kv_replicas", num_kv_replicas, f"a divisor of {num_shards} shards")
    return _fused_loader(sizes, (1, num_kv_replicas, num_kv_replicas), shard_dim, num_shards, is_storage_transposed)


def fused_gate_up_weight_loader(
    shard_size: int, shard_dim: int, num_shards: int, is_storage_transposed: bool = False
) -> SafetensorsWeightLoader:
    """A rank's gate rows, then its up rows.

    The checkpoint has them as two tensors [gate, up], or as one with all gate rows first.

    Args:
        shard_size: rows of one rank's gate, and of its up projection; the checkpoint has ``num_shards`` times as many.
        shard_dim: dimension of the parameter that is divided.
        num_shards: number of ranks.
        is_storage_transposed: the checkpoint holds the matrices transposed.
    """
    _check(shard_dim, num_shards, shard_size=shard_size)
    return _fused_loader((shard_size, shard_size), (1, 1), shard_dim, num_shards, is_storage_transposed)


def _fused_loader(
    sizes: Sequence[int], replicas: Sequence[int], shard_dim: int, num_shards: int, transposed: bool
) -> SafetensorsWeightLoader:
    """Several projections in one parameter: ``sizes`` rows of each on one rank, ``replicas`` ranks share a shard."""
    totals = [size * num_shards // copies for size, copies in zip(sizes, replicas, strict=True)]

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        _check_rank(rank, num_shards)
        if len(slices) not in (1, len(totals)):
            expected = f"{len(totals)} separate projections, or 1 tensor that holds them one after the other"
            raise CheckpointError("checkpoint keys of one parameter", len(slices), expected)
        dim = _storage_dim(slices[0], shard_dim, transposed)
        parts = []
        for source, size, total, copies in zip(_split_block(slices, dim, totals), sizes, totals, replicas, strict=True):
            expect_size(source, dim, total, f"a projection for {num_shards // copies} shards of {size}")
            start = rank // copies * size
            parts.append((source, start, start + size))
        return _oriented(read_joined(parts, dim), transposed)

    return SafetensorsWeightLoader(transform)


def _split_block(slices: Sequence[LazySlice], dim: int, totals: Sequence[int]) -> Sequence[LazySlice]:
    """The parts of a fused block as views, or the separate tensors as they are."""
    if len(slices) == len(totals):
        return slices
    expect_size(slices[0], dim, sum(totals), f"one block of {' + '.join(map(str, totals))}")
    starts = [sum(totals[:i]) for i in range(len(totals))]
    return [SliceView(slices[0], dim, start, start + total) for start, total in zip(starts, totals, strict=True)]


def with_rank_override(loader: SafetensorsWeightLoader, rank: int) -> SafetensorsWeightLoader:
    """The loader, always as that rank: for a layer whose ranks are not the model's."""
    return SafetensorsWeightLoader(lambda slices, _: loader.load(slices, rank))
