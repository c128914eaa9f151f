"""Blocks with weights. They own sharding, the cache write and the choice of phase; they know no model's name."""

from vllm_neuron.nn.attention import Attention
from vllm_neuron.nn.attention_options import Alibi, QueryGrowth
from vllm_neuron.nn.cached import CachedBlock
from vllm_neuron.nn.embedding import LMHead, VocabDimShardedEmbedding
from vllm_neuron.nn.head_norm import HeadNorm, QKNorm
from vllm_neuron.nn.latent import LatentAttention
from vllm_neuron.nn.linear import (
    ColumnParallelLinear,
    GateUpLinear,
    Linear,
    QKVLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm_neuron.nn.mlp import MLP, Clamp, GatedMLP
from vllm_neuron.nn.moe import MoE, RouterConfig
from vllm_neuron.nn.moe_beside import MoEBesideMLP
from vllm_neuron.nn.norm import LayerNorm, RMSNorm
from vllm_neuron.nn.per_layer import PerLayerEmbedding, PerLayerInput
from vllm_neuron.nn.positions import LearnedPositions, SinusoidalPositions
from vllm_neuron.nn.rotary import Rotary, RotaryConfig
from vllm_neuron.nn.sampler import Sampler

__all__ = [
    "MLP",
    "Alibi",
    "Attention",
    "CachedBlock",
    "Clamp",
    "ColumnParallelLinear",
    "GateUpLinear",
    "GatedMLP",
    "HeadNorm",
    "LMHead",
    "LatentAttention",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "MoE",
    "MoEBesideMLP",
    "PerLayerEmbedding",
    "PerLayerInput",
    "QKNorm",
    "QKVLinear",
    "QueryGrowth",
    "RMSNorm",
    "ReplicatedLinear",
    "Rotary",
    "RotaryConfig",
    "RouterConfig",
    "RowParallelLinear",
    "Sampler",
    "SinusoidalPositions",
    "VocabDimShardedEmbedding",
]
