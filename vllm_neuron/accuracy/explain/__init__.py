"""What inside a block is wrong, once the block is known to be: each kind of block has a way of telling."""

from vllm_neuron.accuracy.explain.attention import explain_attention
from vllm_neuron.accuracy.explain.ends import explain_embedding, explain_head, explain_norm
from vllm_neuron.accuracy.explain.mlp import explain_mlp, explain_moe
from vllm_neuron.accuracy.explain.scene import Part, Scene

__all__ = [
    "Part",
    "Scene",
    "explain_attention",
    "explain_embedding",
    "explain_head",
    "explain_mlp",
    "explain_moe",
    "explain_norm",
]
