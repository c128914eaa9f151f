"""Linear layers sharded over the tensor-parallel ranks. They own their shard of the weight and how it is loaded."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError
from vllm_neuron.parallel import Group, TorchGroup, get_tp_group
from vllm_neuron.parallel.neuron_parallel_state import kv_heads_per_rank
from vllm_neuron.utils.weight_loader import (
    QKVShape,
    fused_gate_up_weight_loader,
    qkv_layout_loader,
    set_weight_loader,
    sharding_weight_loader,
)


def as_group(tp_group: Group | dist.ProcessGroup | None) -> Group:
    """The group that a layer was given, or the current tensor-parallel group."""
    if tp_group is None:
        return get_tp_group()
    return TorchGroup(tp_group) if isinstance(tp_group, dist.ProcessGroup) else tp_group


def divide(field: str, size: int, ranks: int) -> int:
    """``size / ranks``.

    Raises:
        ConfigError: the ranks do not divide the size; the message lists the ones that do, up to 64.
    """
    if size % ranks:
        sizes = ", ".join(str(n) for n in range(1, 65) if size % n == 0)
        raise ConfigError(field, size, f"a multiple of tensor_parallel_size {ranks}", f"Sizes that work: {sizes}.")
    return size // ranks


class Linear(nn.Module):
    """A matrix and an optional bias; ``matrix`` is what operations take.

    The weight is stored [out, in] as in a checkpoint. ``pack`` re-lays it for the target after loading.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False) if bias else None
        self._packed: NF.Matrix | None = None

    @property
    def matrix(self) -> NF.Matrix:
        """[in, out], plain or as ``pack`` or ``lay_out`` left it."""
        if self._packed is not None:
            return self._packed
        assert self.weight is not None
        return self.weight.t()

    def pack(self) -> None:
        """Replace the plain weight by one in the CPU's preferred layout; the plain one is freed.

        A float16 weight stays plain: oneDNN packs it on some processors only.
        """
        if self.weight is not None and self.weight.dtype in NF.PackedWeight.DTYPES:
            self._packed = NF.PackedWeight(self.weight.data)
            self.weight = None

    def lay_out(self) -> None:
        """Replace the plain weight by its transpose, contiguous [in, out]: NKI kernels read whole rows of that."""
        if self.weight is not None:
            self._packed = self.weight.data.t().contiguous()
            self.weight = None


class ReplicatedLinear(Linear):
    """``y = x W^T + b``, whole on every rank.

    Shapes: x [T, in] -> [T, out].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False, dtype: torch.dtype | None = None):
        super().__init__(in_features, out_features, bias, dtype)

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        return NF.linear(x_TH, self.matrix, self.bias)


class ColumnParallelLinear(Linear):
    """``y = x W^T + b`` with the output features divided over the ranks.

    Args:
        in_features, out_features: sizes of the whole layer.
        bias: has a bias, divided like the output.
        dtype: of the parameters; torch's default when None.
        gather_output: join the ranks' outputs, so that each rank has all features.
        tp_group: the ranks; the current tensor-parallel group by default.

    Shapes: x [T, in] -> [T, out / ranks], or [T, out] with ``gather_output``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        gather_output: bool = False,
        tp_group: Group | dist.ProcessGroup | None = None,
    ) -> None:
        group = as_group(tp_group)
        self_out = divide("out_features", out_features, group.world_size)
        super().__init__(in_features, self_out, bias, dtype)
        self.group, self.gather_output = group, gather_output
        self.tp_size, self.out_features_per_rank = group.world_size, self_out
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                set_weight_loader(parameter, sharding_weight_loader(0, self_out, group.world_size))

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        y = NF.linear(x_TH, self.matrix, self.bias)
        return self.group.all_gather(y, -1) if self.gather_output else y


class GateUpLinear(Linear):
    """Gate and up projections stored side by side, each divided over the ranks: [H] -> [2 * I / ranks].

    The checkpoint may hold them apart (two keys) or as one block, gate rows first.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False, dtype: torch.dtype | None = None):
        group = get_tp_group()
        shard = divide("intermediate_size", intermediate_size, group.world_size)
        super().__init__(hidden_size, 2 * shard, bias, dtype)
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                set_weight_loader(parameter, fused_gate_up_weight_loader(shard, 0, group.world_size))


class QKVLinear(Linear):
    """Query, key and value projections stored side by side, divided over the ranks by whole heads.

    With more ranks than KV heads each KV head is held by ``ranks / kv_heads`` neighbouring ranks.

    Args:
        hidden_size: H.
        heads, kv_heads, head_size: of the whole layer.
        head_size_v: E, size of the values, when unlike the keys'.
        bias: of q, k and v; one switch for all, or three. A checkpoint has keys for those alone that exist.
        parts: ``qkv``; ``qk`` for a layer whose values are its keys; ``q`` for one that reads another layer's cache.
        dtype: of the parameters; torch's default when None.

    Shapes: [T, H] -> [T, N * D + K * D + K * E] of this rank, in the order q, k, v.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        *,
        head_size_v: int | None = None,
        bias: bool | tuple[bool, bool, bool] = False,
        parts: str = "qkv",
        dtype: torch.dtype | None = None,
    ) -> None:
        ranks = get_tp_group().world_size
        self_kv = kv_heads_per_rank(heads, kv_heads, ranks)
        count, biases = len(parts), (bias,) * 3 if isinstance(bias, bool) else bias
        shape = QKVShape(heads, kv_heads, head_size, head_size if head_size_v is None else head_size_v)
        sizes = (heads // ranks * head_size, self_kv * head_size, self_kv * shape.head_size_v)[:count]
        super().__init__(hidden_size, sum(sizes), any(biases[:count]), dtype)
        self.heads, self.kv_heads, self.sizes = heads // ranks, self_kv, sizes
        for parameter, has in ((self.weight, (True,) * count), (self.bias, biases[:count])):
            if parameter is not None:
                set_weight_loader(parameter, qkv_layout_loader(shape, ranks, has))

    def forward(self, x_TH: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries and keys [T, (N + K) * D], values [T, K * E]: views of one product.

        Without projections of their own: queries alone, and None for the values.
        """
        product = NF.qkv_proj(x_TH, self.matrix, self.bias)
        if len(self.sizes) < 3:
            return product, None
        qk, v = product.split((self.sizes[0] + self.sizes[1], self.sizes[2]), dim=-1)
        return qk, v


class RowParallelLinear(Linear):
    """``y = x W^T + b`` with the input features divided over the ranks and the partial products summed.

    The bias is whole on every rank and added once, after the sum.

    Shapes: x [T, in / ranks] -> [T, out].
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        tp_group: Group | dist.ProcessGroup | None = None,
    ) -> None:
        group = as_group(tp_group)
        self_in = divide("in_features", in_features, group.world_size)
        super().__init__(self_in, out_features, bias, dtype)
        self.group, self.tp_size = group, group.world_size
        assert self.weight is not None
        set_weight_loader(self.weight, sharding_weight_loader(1, self_in, group.world_size))

    def reduce(self, partial_TH: Tensor) -> Tensor:
        """Sum the ranks' partial products and add the bias once."""
        if self.tp_size == 1:
            return partial_TH
        total = self.group.all_reduce(partial_TH)
        return total if self.bias is None else total + self.bias

    @property
    def local_bias(self) -> Tensor | None:
        """The bias that the rank's own product may add: only when there is no sum to wait for."""
        return self.bias if self.tp_size == 1 else None

    def forward(self, x_TF: Tensor) -> Tensor:
        """See the class."""
        return self.reduce(NF.linear(x_TF, self.matrix, self.local_bias))
