"""Olmo2: norms after the blocks, multi-head attention, normed queries and keys, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.olmo2.config import Olmo2Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LMHead, QKNorm, RMSNorm, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class Olmo2Layer(nn.Module):
    """``x + post_attn_norm(attn(x))``, then ``x + post_mlp_norm(mlp(x))``."""

    def __init__(self, c: Olmo2Config, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
            bias=c.attention_bias,
            o_bias=c.attention_bias,
            qk_norm=QKNorm(eps=c.rms_norm_eps, width="full"),
        )
        self.post_attn_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_act)
        self.post_mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.post_attn_norm(self.attn(x_TH, step))
        return x_TH + self.post_mlp_norm(self.mlp(x_TH))


class Olmo2(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Olmo2Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.post_attn_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.post_mlp_norm", "model.layers.{i}.post_feedforward_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: Olmo2Config) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Olmo2Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.head = LMHead(c.hidden_size, c.vocab_size)
