"""Glm4: norms before and after the blocks, grouped-query attention, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.glm4.config import Glm4Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LMHead, RMSNorm, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


def _norm(c: Glm4Config) -> RMSNorm:
    return RMSNorm(c.hidden_size, eps=c.rms_norm_eps)


class Glm4Layer(nn.Module):
    """``x + post_attn_norm(attn(attn_norm(x)))``, then ``x + post_mlp_norm(mlp(mlp_norm(x)))``."""

    def __init__(self, c: Glm4Config, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn_norm = _norm(c)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
            bias=c.attention_bias,
        )
        self.post_attn_norm = _norm(c)
        self.mlp_norm = _norm(c)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_act)
        self.post_mlp_norm = _norm(c)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.post_attn_norm(self.attn(self.attn_norm(x_TH), step))
        return x_TH + self.post_mlp_norm(self.mlp(self.mlp_norm(x_TH)))


class Glm4(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Glm4Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.post_mlp_norm", "model.layers.{i}.post_mlp_layernorm"),
        Map("layers.{i}.post_attn_norm", "model.layers.{i}.post_self_attn_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.gate_up_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: Glm4Config) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Glm4Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = _norm(c)
        self.head = LMHead(c.hidden_size, c.vocab_size)
