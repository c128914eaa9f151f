"""Phi3: pre-norm layers, multi-head attention, windows, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.phi3.config import Phi3Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LMHead, RMSNorm, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class Phi3Layer(nn.Module):
    """``x + attn(attn_norm(x))``, then ``x + mlp(mlp_norm(x))``."""

    def __init__(self, c: Phi3Config, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
            window=c.sliding_window,
        )
        self.mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_act)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.attn(self.attn_norm(x_TH), step)
        return x_TH + self.mlp(self.mlp_norm(x_TH))


class Phi3(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Phi3Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.qkv_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.gate_up_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: Phi3Config) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Phi3Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.head = LMHead(c.hidden_size, c.vocab_size)
