"""Small models whose layers differ, under configs of families that vLLM knows; their weights are random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig

from tests.support.hf import SIZES
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.loading import Fuse, Map, Table
from vllm_neuron.nn import (
    Attention,
    CachedBlock,
    GatedMLP,
    LatentAttention,
    LMHead,
    QKNorm,
    RMSNorm,
    Rotary,
    RotaryConfig,
    VocabDimShardedEmbedding,
)
from vllm_neuron.step import Step

H, WINDOW, CHUNK = 64, 40, 48


def rotary(size: int) -> Rotary:
    """The default table."""
    return Rotary(RotaryConfig(head_size=size, base=10000.0, max_position=512))


def latent(i: int) -> CachedBlock:
    """Latent attention in every layer."""
    sizes = {"kv_rank": 24, "nope_size": 16, "rope_size": 8, "head_size_v": 16, "q_rank": None}
    return LatentAttention(i, H, heads=4, rotary=rotary(8), eps=1e-6, **sizes)  # type: ignore[arg-type]


def chunked(i: int) -> CachedBlock:
    """Three chunked layers, then one that sees everything and has no positions."""
    last = i % 4 == 3
    return Attention(
        i, H, heads=4, kv_heads=2, head_size=16, rotary=None if last else rotary(16), chunk=None if last else CHUNK
    )


def heterogeneous(i: int) -> CachedBlock:
    """Two head sizes, two numbers of KV heads, windows; the last two layers read the caches of two before."""
    full = i % 2 == 1
    return Attention(
        i,
        H,
        heads=4,
        kv_heads=1 if full else 2,
        head_size=32 if full else 16,
        rotary=rotary(32 if full else 16),
        qk_norm=QKNorm(1e-6),
        window=None if full else WINDOW,
        shared_with=i - 2 if i > 3 else None,
    )


@dataclass(frozen=True)
class Kind:
    """A model: the config that vLLM sees, and the attention of each layer."""

    model_type: str
    architecture: str
    layers: int
    make: Callable[[int], CachedBlock]
    values: dict[str, Any]


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
KINDS = {
    "latent": Kind(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        3,
        latent,
        {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "q_lora_rank": None,
         "num_key_value_heads": 4, "rope_parameters": ROPE},
    ),
    "chunked": Kind(
        "llama4_text", "Llama4ForCausalLM", 4, chunked, {"attention_chunk_size": CHUNK, "rope_parameters": ROPE}
    ),
    "heterogeneous": Kind(
        "gemma4_text",
        "Gemma4ForCausalLM",
        6,
        heterogeneous,
        {"head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW,
         "layer_types": ["sliding_attention", "full_attention"] * 3},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """What the frame asks."""

    vocab_size: int = SIZES["vocab_size"]
    max_position_embeddings: int = 512
    tie_word_embeddings: bool = False

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: Any) -> Config:
        """Nothing is read."""
        return cls()


class Layer(nn.Module):
    """``x + attn(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, attn: CachedBlock) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = RMSNorm(H, eps=1e-6), RMSNorm(H, eps=1e-6)
        self.attn, self.mlp = attn, GatedMLP(H, 96, act="silu")

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """[T, H] -> [T, H]."""
        x_TH = x_TH + self.attn(self.attn_norm(x_TH), step)
        return x_TH + self.mlp(self.mlp_norm(x_TH))


def model_class(kind: Kind) -> type[DecoderModel]:
    """The model of a kind; its checkpoint has our own names, with q, k and v apart."""

    class Mixed(DecoderModel):
        CONFIG = Config  # type: ignore[assignment]
        CHECKPOINT = Table(
            Fuse("layers.{i}.attn.qkv", "layers.{i}.attn.{q,k,v}_proj"),
            Map("{embed,norm,head}", "{embed,norm,head}"),
            *(Map(f"layers.{{i}}.{n}", f"layers.{{i}}.{n}")
              for n in ("attn_norm", "mlp_norm", "mlp.gate_up", "mlp.down")),
            *(Map(f"layers.{{i}}.attn.{n}", f"layers.{{i}}.attn.{n}")
              for n in ("o", "q_norm", "k_norm", "q", "kv_a", "kv_norm", "kv_b")),
        )  # fmt: skip

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embed = VocabDimShardedEmbedding(config.vocab_size, H)
            self.layers = nn.ModuleList(Layer(kind.make(i)) for i in range(kind.layers))
            self.norm, self.head = RMSNorm(H, eps=1e-6), LMHead(H, config.vocab_size)

    return Mixed


class Served:
    """Entry points name attributes: ``Served.latent`` and so on."""

    latent, chunked, heterogeneous = (model_class(KINDS[name]) for name in ("latent", "chunked", "heterogeneous"))


def write(kind: Kind, folder: Path) -> None:
    """A checkpoint folder with random weights."""
    sizes = SIZES | {"hidden_size": H, "num_hidden_layers": kind.layers}
    config = AutoConfig.for_model(kind.model_type, **(sizes | kind.values))
    config.architectures = [kind.architecture]
    config.save_pretrained(folder)
    torch.manual_seed(1)
    tensors = {}
    for name, parameter in model_class(kind)(Config()).named_parameters():  # type: ignore[arg-type]
        if name.endswith("attn.qkv.weight"):
            layer = int(name.split(".")[1])
            block = kind.make(layer)
            assert isinstance(block, Attention)
            for part, rows in zip("qkv", block.qkv.sizes, strict=False):
                tensors[name.replace("qkv.weight", f"{part}_proj.weight")] = torch.randn(rows, H) * 0.15
        else:
            tensors[name] = torch.randn(parameter.shape) * 0.15 + (1.0 if "norm" in name else 0.0)
    save_file(tensors, folder / "model.safetensors")
