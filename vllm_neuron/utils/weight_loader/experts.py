"""How a rank's experts are cut out of a checkpoint: per-expert files, or all experts stacked in one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.utils.weight_loader.dense import LazySlice, SafetensorsWeightLoader, SliceView


def expert_range(total_num_experts: int, ranks: int, rank: int) -> range:
    """The experts of one rank: neighbours, the first ranks one more when the ranks do not divide the experts.

    10 experts on 4 ranks are 3, 3, 2, 2.

    Raises:
        ConfigError: more ranks than experts, or a rank outside the group.
    """
    if not 1 <= ranks <= total_num_experts:
        raise ConfigError("ep_degree", ranks, f"1 to {total_num_experts}, the number of experts")
    if not 0 <= rank < ranks:
        raise ConfigError("expert-parallel rank", rank, f"0 to {ranks - 1}")
    each, more = divmod(total_num_experts, ranks)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


class _Squeezed:
    """One expert of a stacked tensor, without the expert dimension."""

    def __init__(self, base: LazySlice, dim: int, expert: int) -> None:
        self.view, self.dim = SliceView(base, dim, expert, expert + 1), dim

    def get_shape(self) -> list[int]:
        shape = self.view.get_shape()
        return shape[: self.dim] + shape[self.dim + 1 :]

    def __getitem__(self, index: object) -> Tensor:
        parts = list(index) if isinstance(index, tuple) else [index]
        if parts == [Ellipsis]:
            parts = [slice(None)] * len(self.get_shape())
        parts.insert(self.dim, slice(None))
        return self.view[tuple(parts)].squeeze(self.dim)


def _checked(indices: Sequence[int], total: int | None) -> list[int]:
    chosen = list(indices)
    wrong = [e for e in chosen if e < 0 or (total is not None and e >= total)]
    if not chosen or wrong or len(set(chosen)) != len(chosen):
        raise ConfigError("local_expert_indices", chosen, f"distinct experts from 0 to {(total or 0) - 1}")
    return chosen


def expert_parallel_tensor_dim_loader(
    local_expert_indices: Sequence[int], original_loader: SafetensorsWeightLoader, expert_dim: int = 0
) -> SafetensorsWeightLoader:
    """A rank's experts out of one tensor that stacks all of them.

    Args:
        local_expert_indices: this rank's experts.
        original_loader: cuts one expert's tensor for the rank (tensor parallel inside an expert).
        expert_dim: dimension of the checkpoint tensor that counts experts.

    Returns:
        A loader of [local experts, ...].
    """
    chosen = _checked(local_expert_indices, None) if local_expert_indices else _checked(local_expert_indices, 0)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        for source in slices:
            size = source.get_shape()[expert_dim]
            if max(chosen) >= size:
                raise CheckpointError("stacked experts", size, f"at least {max(chosen) + 1} experts")
        return torch.stack(
            [original_loader.load([_Squeezed(s, expert_dim, e) for s in slices], rank) for e in chosen]
        )

    return SafetensorsWeightLoader(transform)


def expert_parallel_grouped_loader(
    local_expert_indices: Sequence[int], original_loader: SafetensorsWeightLoader, total_num_experts: int
) -> SafetensorsWeightLoader:
    """A rank's experts out of per-expert tensors, grouped by projection: all gates, then all ups, ...

    With P projections the checkpoint gives ``P * total_num_experts`` tensors; expert e's are at e, e + total, ...
    """
    chosen = _checked(local_expert_indices, total_num_experts)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        projections = _projections(slices, total_num_experts)
        return torch.stack(
            [
                original_loader.load([slices[p * total_num_experts + e] for p in range(projections)], rank)
                for e in chosen
            ]
        )

    return SafetensorsWeightLoader(transform)


def expert_parallel_interleaved_loader(
    local_expert_indices: Sequence[int], original_loader: SafetensorsWeightLoader, total_num_experts: int
) -> SafetensorsWeightLoader:
    """A rank's experts out of per-expert tensors, interleaved by expert: gate 0, up 0, gate 1, up 1, ..."""
    chosen = _checked(local_expert_indices, total_num_experts)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        projections = _projections(slices, total_num_experts)
        return torch.stack(
            [original_loader.load(slices[e * projections : (e + 1) * projections], rank) for e in chosen]
        )

    return SafetensorsWeightLoader(transform)


def _projections(slices: Sequence[LazySlice], total: int) -> int:
    if not slices or len(slices) % total:
        raise CheckpointError("per-expert tensors", len(slices), f"a multiple of {total} experts")
    return len(slices) // total
