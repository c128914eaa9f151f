"""Gemma4: norms before and after the blocks, grouped-query attention, windows, normed queries and keys, gated MLP.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference_models.gemma4.config import Gemma4Config
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import (
    Attention,
    GatedMLP,
    LMHead,
    PerLayerEmbedding,
    PerLayerInput,
    QKNorm,
    RMSNorm,
    Rotary,
    VocabDimShardedEmbedding,
)
from vllm_neuron.step import Step


def _norm(c: Gemma4Config) -> RMSNorm:
    return RMSNorm(c.hidden_size, eps=c.rms_norm_eps)


class Gemma4Layer(nn.Module):
    """``x + post_attn_norm(attn(attn_norm(x)))``, then
    ``x + post_mlp_norm(mlp(mlp_norm(x)))``, then
    ``x + layer_input(x, input)``.
    """

    def __init__(self, c: Gemma4Config, i: int, rotary: dict[str, Rotary]) -> None:
        super().__init__()
        full = c.layer_types[i] == "full_attention"
        self.attn_norm = _norm(c)
        self.attn = Attention(
            i,
            c.hidden_size,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_size=c.head_dim[i],
            rotary=rotary[c.layer_types[i]],
            bias=c.attention_bias,
            o_bias=c.attention_bias,
            qk_norm=QKNorm(eps=c.rms_norm_eps),
            v_norm=QKNorm(eps=c.rms_norm_eps, weight=False),
            k_eq_v=c.layer_types[i] == "full_attention" and c.attention_k_eq_v,
            scale=1.0,
            window=None if full else c.sliding_window,
            shared_with=c.kv_source[i],
        )
        self.post_attn_norm = _norm(c)
        self.mlp_norm = _norm(c)
        self.mlp = GatedMLP(
            c.hidden_size,
            2 * c.intermediate_size if c.use_double_wide_mlp and c.kv_source[i] is not None else c.intermediate_size,
            act=c.hidden_activation,
        )
        self.post_mlp_norm = _norm(c)
        self.layer_input = (
            PerLayerInput(c.hidden_size, c.hidden_size_per_layer_input, act=c.hidden_activation, eps=c.rms_norm_eps)
            if c.hidden_size_per_layer_input
            else None
        )
        self.scalar = nn.Parameter(torch.empty(1), requires_grad=False)

    def forward(self, x_TH: Tensor, step: Step, input_TP: Tensor | None) -> Tensor:
        """[T, H] and the layer's own embedding [T, P] -> [T, H]."""
        x_TH = x_TH + self.post_attn_norm(self.attn(self.attn_norm(x_TH), step))
        x_TH = x_TH + self.post_mlp_norm(self.mlp(self.mlp_norm(x_TH)))
        if self.layer_input is not None:
            x_TH = x_TH + self.layer_input(x_TH, input_TP)
        return (x_TH) * self.scalar


class Gemma4(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = Gemma4Config
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("per_layer.table", "model.embed_tokens_per_layer"),
        Map("per_layer.projection", "model.per_layer_model_projection"),
        Map("per_layer.norm", "model.per_layer_projection_norm"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.post_attn_norm", "model.layers.{i}.post_attention_layernorm"),
        Map("layers.{i}.post_mlp_norm", "model.layers.{i}.post_feedforward_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.pre_feedforward_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.k_norm", "model.layers.{i}.self_attn.k_norm"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.attn.q_norm", "model.layers.{i}.self_attn.q_norm"),
        Map("layers.{i}.scalar", "model.layers.{i}.layer_scalar"),
        Map("layers.{i}.layer_input.gate", "model.layers.{i}.per_layer_input_gate"),
        Map("layers.{i}.layer_input.projection", "model.layers.{i}.per_layer_projection"),
        Map("layers.{i}.layer_input.norm", "model.layers.{i}.post_per_layer_input_norm"),
        Fuse("layers.{i}.mlp.gate_up", "model.layers.{i}.mlp.{gate,up}_proj"),
        Map("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj"),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: Gemma4Config) -> None:
        super().__init__(c)
        rotary = {kind: Rotary(config) for kind, config in c.rotary.items()}
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size, scale=c.hidden_size**0.5)
        self.per_layer = (
            PerLayerEmbedding(
                c.vocab_size_per_layer_input,
                c.num_hidden_layers,
                c.hidden_size_per_layer_input,
                c.hidden_size,
                eps=c.rms_norm_eps,
            )
            if c.hidden_size_per_layer_input
            else None
        )
        self.layers = nn.ModuleList(Gemma4Layer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = _norm(c)
        self.head = LMHead(c.hidden_size, c.vocab_size, softcap=c.final_logit_softcapping)

    def forward(self, step: Step) -> Tensor:
        """Hidden states [T, H] after the last norm; each layer gets its own embedding of the tokens too."""
        x_TH = self.embed_tokens(step)
        inputs_TLP = None if self.per_layer is None else self.per_layer(step.token_ids_T, x_TH)
        for i, layer in enumerate(self.layers):
            x_TH = layer(x_TH, step, None if inputs_TLP is None else inputs_TLP[:, i])
        return self.norm(x_TH)
