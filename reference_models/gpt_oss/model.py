"""GptOss: pre-norm layers, grouped-query attention, windows with sinks, mixture of experts.

Shapes: T tokens of the step, H hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn

from reference_models.gpt_oss.config import GptOssConfig
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table, Tie
from vllm_neuron.nn import Attention, Clamp, LMHead, MoE, RMSNorm, Rotary, RouterConfig, VocabDimShardedEmbedding
from vllm_neuron.step import Step


class GptOssLayer(nn.Module):
    """``x + attn(attn_norm(x))``, then ``x + mlp(mlp_norm(x))``."""

    def __init__(self, c: GptOssConfig, i: int, rotary: Rotary) -> None:
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
            window=None if c.layer_types[i] == "full_attention" else c.sliding_window,
            sinks=True,
        )
        self.mlp_norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = MoE(
            c.hidden_size,
            experts=c.num_experts,
            top_k=c.num_experts_per_tok,
            intermediate_size=c.intermediate_size,
            act=c.hidden_act,
            router=RouterConfig(normalize=True, bias=True),
            bias=True,
            clamp=Clamp(c.swiglu_limit, alpha=c.swiglu_alpha, up_shift=1.0),
        )

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.attn(self.attn_norm(x_TH), step)
        return x_TH + self.mlp(self.mlp_norm(x_TH))


class GptOss(DecoderModel):
    """The whole model; its frame is :class:`DecoderModel`'s."""

    CONFIG = GptOssConfig
    CHECKPOINT = Table(
        Map("embed", "model.embed_tokens"),
        Map("layers.{i}.attn_norm", "model.layers.{i}.input_layernorm"),
        Map("layers.{i}.mlp_norm", "model.layers.{i}.post_attention_layernorm"),
        Fuse("layers.{i}.attn.qkv", "model.layers.{i}.self_attn.{q,k,v}_proj"),
        Map("layers.{i}.attn.o", "model.layers.{i}.self_attn.o_proj"),
        Map("layers.{i}.attn.sinks", "model.layers.{i}.self_attn.sinks"),
        Map("layers.{i}.mlp.router", "model.layers.{i}.mlp.router"),
        Map("layers.{i}.mlp.experts.down.weight", "model.layers.{i}.mlp.experts.down_proj", transpose=True),
        Map("layers.{i}.mlp.experts.down.bias", "model.layers.{i}.mlp.experts.down_proj_bias"),
        Map(
            "layers.{i}.mlp.experts.gate_up.weight",
            "model.layers.{i}.mlp.experts.gate_up_proj",
            transpose=True,
            layout="interleaved",
        ),
        Map(
            "layers.{i}.mlp.experts.gate_up.bias",
            "model.layers.{i}.mlp.experts.gate_up_proj_bias",
            layout="interleaved",
        ),
        Map("norm", "model.norm"),
        Map("head", "lm_head"),
        Tie("head", "embed", when="tie_word_embeddings"),
    )

    def __init__(self, c: GptOssConfig) -> None:
        super().__init__(c)
        rotary = Rotary(c.rotary)
        self.embed = VocabDimShardedEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(GptOssLayer(c, i, rotary) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.head = LMHead(c.hidden_size, c.vocab_size)
