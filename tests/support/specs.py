"""Architectures made by hand, for tests that need no config."""

from __future__ import annotations

import dataclasses
from typing import Any

from onboard.arch.blocks import MLP, Attention, Layer, LayerNorms, MoE, Norm, Positions, QKNorm, Router, Scaling
from onboard.arch.spec import ArchSpec, Embedding, Head, Tower
from onboard.facts.api import ModelFacts

LLAMA3 = Scaling("llama3", 8.0, 8192, 1.0, 4.0)


def llama(layers: int = 32, hidden: int = 4096, **attention: Any) -> ArchSpec:
    """Llama-3.1-8B, or one like it with other arguments of its attention."""
    norm = Norm("rms", 1e-5)
    settings: dict[str, Any] = {"kind": "full", "heads": 32, "kv_heads": 8, "head_size_k": 128, "head_size_v": 128,
                "positions": Positions("rotary", 500000.0, 128, scaling=LLAMA3), "scale": 128**-0.5}  # fmt: skip
    layer = Layer(
        attention=Attention(**{**settings, **attention}),
        mlp=MLP(14336, "silu"),
        norms=LayerNorms(pre_mixer=norm, pre_mlp=norm),
    )
    return ArchSpec(hidden, Embedding(128256, hidden), (layer,), (0,) * layers, norm, Head(False), 131072, "bfloat16")


def gemma4() -> ArchSpec:
    """Close to Gemma-4-31B: two kinds of layers that differ in almost everything."""
    norm, head_norm = Norm("rms", 1e-6), QKNorm(Norm("rms", 1e-6))
    norms = LayerNorms(norm, norm, norm, norm)
    sliding = Attention("sliding", 32, 16, 256, 256, Positions("rotary", 1e4, 256), 1.0, qk_norm=head_norm,
                        v_norm=Norm("rms", 1e-6, weight=False), window=1024)  # fmt: skip
    turned = Positions("rotary", 1e6, 128, frequency_dim=512, scaling=Scaling("proportional"))
    full = dataclasses.replace(sliding, kind="full", kv_heads=4, head_size_k=512, head_size_v=512, positions=turned,
                               window=None, k_eq_v=True)  # fmt: skip
    kinds = tuple(Layer(attention=a, mlp=MLP(21504, "gelu_tanh"), norms=norms, output_scalar=True)
                  for a in (sliding, full))  # fmt: skip
    return ArchSpec(5376, Embedding(262144, 5376, 5376**0.5), kinds, (0, 0, 0, 0, 0, 1) * 10, norm,
                    Head(True, softcap=30.0), 262144, "bfloat16",
                    towers=(Tower("vision", "gemma4_vision"),))  # fmt: skip


def mixture(experts: int = 128) -> ArchSpec:
    """A Qwen3-MoE-like model."""
    base = llama(hidden=2048, qk_norm=QKNorm(Norm("rms", 1e-6)))
    moe = MoE(experts, 8, 768, "silu", Router(normalize=True))
    return dataclasses.replace(base, kinds=(dataclasses.replace(base.kinds[0], mlp=None, moe=moe),))


def facts(arch: ArchSpec, name: str = "model", **values: Any) -> ModelFacts:
    """Facts around a spec made by hand."""
    settings: dict[str, Any] = {"origin": "file", "location": "config.json", "model_type": "made",
                                "architectures": ("MadeForCausalLM",), "section": "", "raw": {},
                                "text": {}}  # fmt: skip
    return ModelFacts(name=name, arch=arch, **{**settings, **values})
