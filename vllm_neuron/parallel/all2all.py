"""All-to-all exchange between the ranks of a group, under the name that expert-parallel code imports."""

from __future__ import annotations

from torch import Tensor

from vllm_neuron.errors import ShapeError
from vllm_neuron.parallel.group import Group
from vllm_neuron.parallel.neuron_parallel_state import get_tp_group


def all_to_all(x: Tensor, split_dim: int, concat_dim: int, group: Group | None = None) -> Tensor:
    """Slice ``x`` along ``split_dim``, send slice r to rank r, join what arrives along ``concat_dim``.

    Raises:
        ShapeError: the ranks do not divide ``x.shape[split_dim]``.
    """
    group = group or get_tp_group()
    if x.shape[split_dim] % group.world_size:
        raise ShapeError(
            f"all_to_all: size of dimension {split_dim}", x.shape[split_dim], f"a multiple of {group.world_size} ranks"
        )
    return group.all_to_all(x, split_dim, concat_dim)
