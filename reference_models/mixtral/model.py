"""Mixtral: pre-norm layers, grouped-query attention, mixture of experts.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.mixtral.config import MixtralConfig
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, StackExperts, Table, Tie
from vllm_neuron.nn import Attention, LMHead, MoE, RMSNorm, Rotary, RouterConfig, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class MixtralLayer(nn.Module):
    """``x + attn(attn_norm(x))``, then ``x + mlp(mlp_norm(x))``."""

    def __init__(self, c: MixtralConfig, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
        )
        self.mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = MoE(
            c.hidden_size,
            experts=c.num_experts,
            top_k=c.num_experts_per_tok,
            intermediate_size=c.intermediate_size,
            act=c.hidden_act,
            router=RouterConfig(normalize=True),
        )

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.attn(self.attn_norm(x_TH), step)
        return x_TH + self.mlp(self.mlp_norm(x_TH))


class Mixtral(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = MixtralConfig
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.mlp.router", "model.layers.{i}.block_sparse_moe.gate"),
        StackExperts("layers.{i}.mlp.experts.gate_up", "model.layers.{i}.block_sparse_moe.experts.{e}.w{1,3}"),
        StackExperts("layers.{i}.mlp.experts.down", "model.layers.{i}.block_sparse_moe.experts.{e}.w2"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: MixtralConfig) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(MixtralLayer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.head = LMHead(c.hidden_size, c.vocab_size)
