"""Gemma 2 in the house's blocks: the one tiny model here with a soft cap on the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import Attention, GatedMLP, LMHead, RMSNorm, Rotary, RotaryConfig, VocabDimShardedEmbedding
from vllm_neuron.step import Step


@dataclass(frozen=True)
class Gemma2Config:
    """The Hugging Face config and what the frame reads of it."""

    hf: Any
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Gemma2Config:
        """Read a ``transformers.Gemma2Config``."""
        return cls(hf_config, hf_config.vocab_size, hf_config.max_position_embeddings, hf_config.tie_word_embeddings)


def _norm(c: Any) -> RMSNorm:
    return RMSNorm(c.hidden_size, eps=c.rms_norm_eps, plus_one=True)


class Gemma2Layer(nn.Module):
    """``x + post_attn_norm(attn(attn_norm(x)))``, then ``x + post_mlp_norm(mlp(mlp_norm(x)))``."""

    def __init__(self, c: Any, i: int, rotary: Rotary) -> None:
        super().__init__()
        self.attn_norm = _norm(c)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim,
            rotary=rotary,
            scale=c.query_pre_attn_scalar**-0.5,
            window=None if c.layer_types[i] == "full_attention" else c.sliding_window,
            softcap=c.attn_logit_softcapping,
        )
        self.post_attn_norm = _norm(c)
        self.mlp_norm = _norm(c)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, act=c.hidden_activation)
        self.post_mlp_norm = _norm(c)

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.post_attn_norm(self.attn(self.attn_norm(x_TH), step))
        return x_TH + self.post_mlp_norm(self.mlp(self.mlp_norm(x_TH)))


class Gemma2(DecoderModel):
    """The whole model."""

    CONFIG = Gemma2Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.post_attn_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.post_mlp_norm", "model.layers.{i}.post_feedforward_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.pre_feedforward_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, config: Gemma2Config) -> None:
        super().__init__(config)
        c = config.hf
        rotary = Rotary(RotaryConfig.from_parameters(c.rope_parameters, c.head_dim, c.max_position_embeddings))
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5)
        self.layers = nn.ModuleList(Gemma2Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = _norm(c)
        self.head = LMHead(c.hidden_size, c.vocab_size, softcap=c.final_logit_softcapping)
