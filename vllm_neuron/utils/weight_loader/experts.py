"""How a rank's experts are cut out of a checkpoint: a tensor for each expert, or all experts stacked in one tensor."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.utils.weight_loader.dense import SafetensorsWeightLoader
from vllm_neuron.utils.weight_loader.slices import LazySlice, SliceView, expect_size, stack


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


def _checked(indices: Sequence[int], total: int | None) -> list[int]:
    chosen = list(indices)
    wrong = [e for e in chosen if e < 0 or (total is not None and e >= total)]
    if not chosen or wrong or len(set(chosen)) != len(chosen):
        bound = "" if total is None else f" to {total - 1}"
        raise ConfigError("local_expert_indices", chosen, f"at least one expert, each once, from 0{bound}")
    return chosen


def expert_parallel_tensor_dim_loader(
    local_expert_indices: Sequence[int],
    original_loader: SafetensorsWeightLoader,
    expert_dim: int = 0,
    total_num_experts: int | None = None,
) -> SafetensorsWeightLoader:
    """A rank's experts out of one tensor (or one for each projection) that stacks all of them.

    Args:
        local_expert_indices: this rank's experts, e.g. :func:`expert_range`.
        original_loader: cuts one expert's tensor, without the expert dimension, for the rank (tensor parallel inside
            an expert).
        expert_dim: dimension of the checkpoint tensor that counts experts.
        total_num_experts: experts that the tensor must hold; unchecked when None.

    Returns:
        A loader of [local experts, ...].
    """
    chosen = _checked(local_expert_indices, total_num_experts)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        for source in slices:
            if total_num_experts is not None:
                expect_size(source, expert_dim, total_num_experts, "stacked experts")
            elif expert_dim >= len(source.get_shape()) or max(chosen) >= source.get_shape()[expert_dim]:
                expected = f"expert {max(chosen)} along dimension {expert_dim}"
                raise CheckpointError("stacked experts: shape", source.get_shape(), expected)
        return stack(
            (
                original_loader.load([SliceView(s, expert_dim, e, e + 1, drop=True) for s in slices], rank)
                for e in chosen
            ),
            len(chosen),
        )

    return SafetensorsWeightLoader(transform)


def expert_parallel_grouped_loader(
    local_expert_indices: Sequence[int], original_loader: SafetensorsWeightLoader, total_num_experts: int
) -> SafetensorsWeightLoader:
    """A rank's experts out of per-expert tensors, grouped by projection: all gates, then all ups, ...

    With P projections the checkpoint gives ``P * total_num_experts`` tensors; expert e's are at e, e + total, ...
    ``original_loader`` gets the P tensors of one expert. Returns a loader of [local experts, ...].
    """
    chosen = _checked(local_expert_indices, total_num_experts)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        _projections(slices, total_num_experts)
        return stack((original_loader.load(slices[e::total_num_experts], rank) for e in chosen), len(chosen))

    return SafetensorsWeightLoader(transform)


def expert_parallel_interleaved_loader(
    local_expert_indices: Sequence[int], original_loader: SafetensorsWeightLoader, total_num_experts: int
) -> SafetensorsWeightLoader:
    """A rank's experts out of per-expert tensors, interleaved by expert: gate 0, up 0, gate 1, up 1, ...

    This is the order of a ``StackExperts`` row. ``original_loader`` gets the tensors of one expert. Returns a loader of
    [local experts, ...].
    """
    chosen = _checked(local_expert_indices, total_num_experts)

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        each = _projections(slices, total_num_experts)
        return stack(
            (original_loader.load(slices[e * each : (e + 1) * each], rank) for e in chosen),
            len(chosen),
        )

    return SafetensorsWeightLoader(transform)


def expert_parallel_weight_loader(
    local_expert_indices: Sequence[int],
    original_loader: SafetensorsWeightLoader,
    total_num_experts: int,
    *,
    stacked_loader: SafetensorsWeightLoader | None = None,
) -> SafetensorsWeightLoader:
    """A rank's experts from either form of checkpoint: per-expert tensors (interleaved), or stacked ones.

    Fewer tensors than experts, with all the experts along dimension 0, are taken for stacked ones.

    Args:
        local_expert_indices: this rank's experts.
        original_loader: cuts one expert of a per-expert checkpoint.
        total_num_experts: experts in the checkpoint, at least 2.
        stacked_loader: cuts one expert of a stacked checkpoint, where that holds it in another layout (transposed);
            ``original_loader`` by default.

    Returns:
        A loader of [local experts, ...].
    """
    if total_num_experts < 2:
        raise ConfigError("total_num_experts", total_num_experts, "2 or more")
    apart = expert_parallel_interleaved_loader(local_expert_indices, original_loader, total_num_experts)
    stacked = expert_parallel_tensor_dim_loader(
        local_expert_indices, stacked_loader or original_loader, total_num_experts=total_num_experts
    )

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        few = 0 < len(slices) < total_num_experts
        is_stacked = few and all(s.get_shape()[:1] == [total_num_experts] for s in slices)
        return (stacked if is_stacked else apart).load(slices, rank)

    return SafetensorsWeightLoader(transform)


def _projections(slices: Sequence[LazySlice], total: int) -> int:
    if not slices or len(slices) % total:
        raise CheckpointError("per-expert tensors", len(slices), f"a multiple of {total} experts")
    return len(slices) // total
