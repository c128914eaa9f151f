"""Cohere2: attention and MLP side by side, grouped-query attention, windows, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.cohere2.config import Cohere2Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LayerNorm, LMHead, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class Cohere2Layer(nn.Module):
    """``h_TH = attn_norm(x)``, then ``x + attn(h_TH) + mlp(h_TH)``."""

    def __init__(self, c: Cohere2Config, i: int, rotary: Rotary) -> None:
        super().__init__()
        full = c.layer_types[i] == "full_attention"
        self.attn_norm = LayerNorm(c.hidden_size, eps=c.layer_norm_eps, bias=False)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=None if full else rotary,
            bias=c.attention_bias,
            o_bias=c.attention_bias,
            window=None if full else c.sliding_window,
        )
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_act)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        h_TH = self.attn_norm(x_TH)
        return x_TH + self.attn(h_TH, step) + self.mlp(h_TH)


class Cohere2(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Cohere2Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: Cohere2Config) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Cohere2Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = LayerNorm(c.hidden_size, eps=c.layer_norm_eps, bias=False)
        self.head = LMHead(c.hidden_size, c.vocab_size, multiplier=c.logit_scale)
