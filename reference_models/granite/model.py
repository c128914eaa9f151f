"""Granite: pre-norm layers, grouped-query attention, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.granite.config import GraniteConfig
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LMHead, RMSNorm, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class GraniteLayer(nn.Module):
    """``x + residual_scale * attn(attn_norm(x))``, then ``x + residual_scale * mlp(mlp_norm(x))``."""

    def __init__(self, c: GraniteConfig, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
            bias=c.attention_bias,
            o_bias=c.attention_bias,
            scale=c.attention_multiplier,
        )
        self.mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_act, bias=c.mlp_bias)
        self.residual_scale = c.residual_multiplier

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.residual_scale * self.attn(self.attn_norm(x_TH), step)
        return x_TH + self.residual_scale * self.mlp(self.mlp_norm(x_TH))


class Granite(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = GraniteConfig
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: GraniteConfig) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size, scale=c.embedding_multiplier)
        self.layers = nn.ModuleList(GraniteLayer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.head = LMHead(c.hidden_size, c.vocab_size, multiplier=1.0 / c.logits_scaling)
