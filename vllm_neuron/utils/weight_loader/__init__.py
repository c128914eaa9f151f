"""Weight loaders: how one rank's shard of a parameter is cut out of checkpoint tensors."""

from vllm_neuron.utils.weight_loader.dense import (
    SafetensorsWeightLoader,
    fused_gate_up_weight_loader,
    fused_qkv_weight_loader,
    get_weight_loader,
    replicated_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
    sharding_weight_loader_with_padding,
    with_rank_override,
)
from vllm_neuron.utils.weight_loader.expert_layouts import EXPERT_LAYOUTS, StridedView, experts_loader, vector_loader
from vllm_neuron.utils.weight_loader.experts import (
    expert_parallel_grouped_loader,
    expert_parallel_interleaved_loader,
    expert_parallel_tensor_dim_loader,
    expert_parallel_weight_loader,
    expert_range,
)
from vllm_neuron.utils.weight_loader.qkv import LAYOUTS, QKVShape, gate_layout_loader, qkv_layout_loader
from vllm_neuron.utils.weight_loader.slices import (
    GatherView,
    LazySlice,
    ShapeSlice,
    SliceView,
    TensorSlice,
    TransposedView,
    index_bounds,
)

__all__ = [
    "EXPERT_LAYOUTS",
    "LAYOUTS",
    "GatherView",
    "LazySlice",
    "QKVShape",
    "SafetensorsWeightLoader",
    "ShapeSlice",
    "SliceView",
    "StridedView",
    "TensorSlice",
    "TransposedView",
    "expert_parallel_grouped_loader",
    "expert_parallel_interleaved_loader",
    "expert_parallel_tensor_dim_loader",
    "expert_parallel_weight_loader",
    "expert_range",
    "experts_loader",
    "fused_gate_up_weight_loader",
    "fused_qkv_weight_loader",
    "gate_layout_loader",
    "get_weight_loader",
    "index_bounds",
    "qkv_layout_loader",
    "replicated_weight_loader",
    "set_weight_loader",
    "sharding_weight_loader",
    "sharding_weight_loader_with_padding",
    "vector_loader",
    "with_rank_override",
]
