"""Blocks with weights. They own sharding, the cache write and the choice of phase; they know no model's name."""

from vllm_neuron.nn.attention import Attention
from vllm_neuron.nn.embedding import LMHead, VocabDimShardedEmbedding
from vllm_neuron.nn.linear import ColumnParallelLinear, GateUpLinear, Linear, QKVLinear, RowParallelLinear
from vllm_neuron.nn.mlp import GatedMLP
from vllm_neuron.nn.norm import RMSNorm
from vllm_neuron.nn.rotary import Rotary, RotaryConfig
from vllm_neuron.nn.sampler import Sampler

__all__ = [
    "Attention",
    "ColumnParallelLinear",
    "GateUpLinear",
    "GatedMLP",
    "LMHead",
    "Linear",
    "QKVLinear",
    "RMSNorm",
    "Rotary",
    "RotaryConfig",
    "RowParallelLinear",
    "Sampler",
    "VocabDimShardedEmbedding",
]
