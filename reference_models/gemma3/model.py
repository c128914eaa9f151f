"""Gemma3: norms before and after the blocks, grouped-query attention, windows, normed queries and keys, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.gemma3.config import Gemma3Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, GatedMLP, LMHead, QKNorm, RMSNorm, Rotary, VocabDimShardedEmbedding
from vllm_neuron.step import Step


def _norm(c: Gemma3Config) -> RMSNorm:
    return RMSNorm(c.hidden_size, eps=c.rms_norm_eps, plus_one=True)


class Gemma3Layer(nn.Module):
    """``x + post_attn_norm(attn(attn_norm(x)))``, then ``x + post_mlp_norm(mlp(mlp_norm(x)))``."""

    def __init__(self, c: Gemma3Config, i: int, rotary: dict[str, Rotary]) -> None:
        super().__init__()
        self.attn_norm = _norm(c)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary[c.layer_types[i]],
            bias=c.attention_bias,
            o_bias=c.attention_bias,
            qk_norm=QKNorm(eps=c.rms_norm_eps, plus_one=True),
            scale=c.query_pre_attn_scalar**-0.5,
            window=None if c.layer_types[i] == "full_attention" else c.sliding_window,
        )
        self.post_attn_norm = _norm(c)
        self.mlp_norm = _norm(c)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_activation)
        self.post_mlp_norm = _norm(c)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.post_attn_norm(self.attn(self.attn_norm(x_TH), step))
        return x_TH + self.post_mlp_norm(self.mlp(self.mlp_norm(x_TH)))


class Gemma3(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Gemma3Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.post_attn_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.post_mlp_norm", "model.layers.{i}.post_feedforward_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.pre_feedforward_layernorm"),
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

    def __init__(self, c: Gemma3Config) -> None:
        super().__init__(c)
        rotary = {kind: Rotary(config) for kind, config in c.rotary.items()}
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5)
        self.layers = nn.ModuleList(Gemma3Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = _norm(c)
        self.head = LMHead(c.hidden_size, c.vocab_size, softcap=c.final_logit_softcapping)
