"""Building operations (``import vllm_neuron.functional as NF``): each a plain-torch reference, kernels, and a reason.

``NF.mlp(...)`` runs the kernel that the current target has for these shapes, or the reference;
``NF.mlp.reference(...)`` always runs the reference; ``NF.mlp.explain(...)`` says what each kernel answers.
"""

from vllm_neuron.functional.attention import attention_decode, flash_attention, kv_write, segmented_attention
from vllm_neuron.functional.dispatch import calls, observe, refusals, set_target, tries_nki, use_kernels
from vllm_neuron.functional.embedding import argmax, embedding, topk
from vllm_neuron.functional.mlp import activation, mlp
from vllm_neuron.functional.moe import moe_experts
from vllm_neuron.functional.norm import layer_norm, rms_norm
from vllm_neuron.functional.operation import (
    OPERATIONS,
    YES,
    Operation,
    Support,
    get,
    no,
    operation,
)
from vllm_neuron.functional.projection import linear, o_proj, qkv_proj
from vllm_neuron.functional.rotary import rotary, rotary_table
from vllm_neuron.functional.route import route
from vllm_neuron.functional.weight import Matrix, PackedWeight

__all__ = [
    "OPERATIONS",
    "YES",
    "Matrix",
    "Operation",
    "PackedWeight",
    "Support",
    "activation",
    "argmax",
    "attention_decode",
    "calls",
    "embedding",
    "flash_attention",
    "get",
    "kv_write",
    "layer_norm",
    "linear",
    "mlp",
    "moe_experts",
    "no",
    "o_proj",
    "observe",
    "operation",
    "qkv_proj",
    "refusals",
    "rms_norm",
    "rotary",
    "rotary_table",
    "route",
    "segmented_attention",
    "set_target",
    "topk",
    "tries_nki",
    "use_kernels",
]
