"""Compared values of feed-forward parts, norms, the layer's wiring, embedding, head and what surrounds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from onboard.arch.blocks import MLP as Dense
from onboard.arch.blocks import Layer, LayerNorms, MoE, Norm, Router
from onboard.arch.spec import ArchSpec, HyperConnections, PerLayerInput
from onboard.diff.fields import ABSENT, CONFIG, KV, LAYER, MLP, MODEL, TABLE, Field, dig, inner

FFN, NORM, EMBED, SPECIAL = "MLP and activation", "normalisation", "embedding", "special features"


def activation(layer: Layer) -> Any:
    """The activation of the dense block, else of the experts."""
    part = layer.mlp or layer.moe
    return ABSENT if part is None else part.activation


def gated(layer: Layer) -> Any:
    """Whether the dense block, else the experts, multiply by a gate."""
    part = layer.mlp or layer.moe
    return ABSENT if part is None else part.gated


def mlp_bias(layer: Layer) -> Any:
    """Which projections of the feed-forward part have a bias."""
    part = layer.mlp or layer.moe
    if part is None:
        return ABSENT
    return " and ".join(n for n, has in (("up", part.up_bias), ("down", part.down_bias)) if has) or "none"


def norm_value(name: str) -> Callable[[ArchSpec], Any]:
    """A getter of one property of all norms on the residual: one value, or an object by place where they differ."""

    def get(arch: ArchSpec) -> Any:
        found: dict[str, Any] = {}
        for kind in arch.kinds:
            for place in dataclasses.fields(LayerNorms):
                one = getattr(kind.norms, place.name)
                if one is not None:
                    found.setdefault(place.name, getattr(one, name))
                    if found[place.name] != getattr(one, name):
                        found[f"{place.name} of {kind.mixer_kind} layers"] = getattr(one, name)
        if arch.final_norm is not None:
            found["final"] = getattr(arch.final_norm, name)
        if not found:
            return ABSENT
        first = next(iter(found.values()))
        return first if all(value == first for value in found.values()) else found

    return get


def norm_places(layer: Layer) -> str:
    """Where the layer normalises: the usual name, and the list of places where it is no usual one."""
    places = [f.name for f in dataclasses.fields(LayerNorms) if getattr(layer.norms, f.name) is not None]
    usual = {
        "pre": ["pre_mixer", "pre_mlp"],
        "post": ["post_mixer", "post_mlp"],
        "sandwich": ["pre_mixer", "post_mixer", "pre_mlp", "post_mlp"],
        "parallel": ["pre_mixer"],
        "after the sum": ["post_mixer", "post_mlp"],
        "none": [],
    }
    name = layer.norm_places
    return name if usual[name] == places else f"{name} ({', '.join(p.replace('_', ' ') for p in places)})"


def multiplier(arch: ArchSpec) -> Any:
    """The factor on the embedding: the root of the width by name, else the number."""
    e = arch.embedding
    return "sqrt(hidden)" if e.multiplier != 1.0 and abs(e.multiplier / e.size**0.5 - 1) < 1e-6 else e.multiplier


def towers(arch: ArchSpec) -> Any:
    """The towers' names and kinds."""
    return ", ".join(f"{t.name}: {t.kind}" if t.kind else t.name for t in arch.towers) or "none"


FEED_FORWARD: tuple[Field, ...] = (
    Field("mlp", FFN, "mlp", lambda x: x.mlp or x.moe, (MLP, TABLE), presence=True),
    Field("mlp.activation", FFN, "mlp", activation, (CONFIG, MLP), sources=("mlp.activation", "moe.activation")),
    Field("mlp.gated", FFN, "mlp", gated, (MLP, TABLE), sources=("mlp.gated", "moe.gated")),
    Field("mlp.bias", FFN, "mlp", mlp_bias, (CONFIG, MLP, TABLE),
          sources=("mlp.up_bias", "mlp.down_bias", "moe.up_bias", "moe.down_bias")),
    Field("mlp.clamp", FFN, "mlp", dig("mlp", "clamp"), (MLP,)),
    Field("mlp.down_norm", FFN, "mlp", dig("mlp", "down_norm"), (MLP, TABLE)),
    Field("mlp.fused", FFN, "mlp", dig("mlp", "fused"), (TABLE,)),
    Field("mlp.size", FFN, "mlp", dig("mlp", "size"), (CONFIG,), "size"),
    Field("moe", FFN, "mlp", dig("moe"), (CONFIG, MLP, TABLE), presence=True),
    *inner(MoE, ("moe",), path="moe", item=FFN, facet="mlp", affects=(CONFIG, MLP),
           sizes=("experts", "top_k", "size", "latent_size"),
           skip=("activation", "gated", "up_bias", "down_bias", "router", "shared", "latent_size")),
    Field("moe.latent", FFN, "mlp", lambda x: ABSENT if not x.moe else x.moe.latent_size is not None, (MLP, TABLE),
          sources=("moe.latent_size",)),
    Field("moe.latent_size", FFN, "mlp", dig("moe", "latent_size"), (CONFIG,), "size"),
    Field("moe.shared", FFN, "mlp", dig("moe", "shared"), (MLP, TABLE), presence=True),
    *inner(Dense, ("moe", "shared"), path="moe.shared", item=FFN, facet="mlp", affects=(CONFIG, MLP), sizes=("size",)),
    *inner(Router, ("moe", "router"), path="moe.router", item=FFN, facet="mlp", affects=(CONFIG, MLP),
           sizes=("groups", "top_groups")),
)  # fmt: skip

NORMS: tuple[Field, ...] = (
    Field("norms.places", NORM, "layer", norm_places, (LAYER, TABLE)),
    *(Field(f"norms.{f.name}", NORM, "model", norm_value(f.name),
            (CONFIG,) if f.name == "eps" else (LAYER, TABLE) if f.name in ("bias", "weight") else (LAYER,),
            sources=(f"norms.{f.name}", f"final_norm.{f.name}"))
      for f in dataclasses.fields(Norm)),
    Field("final_norm", NORM, "model", lambda x: x.final_norm is not None, ("model.py", TABLE)),
)  # fmt: skip

LAYERS: tuple[Field, ...] = (
    Field("layer.parallel", SPECIAL, "layer", lambda x: x.parallel, (LAYER,), sources=("norms.places",)),
    Field("layer.shared_norm", NORM, "layer", lambda x: x.shared_norm, (LAYER, TABLE),
          sources=("norms.places",)),
    Field("layer.residual_scale", SPECIAL, "layer", lambda x: x.residual_scale, (CONFIG, LAYER),
          sources=("residual_scale",)),
    Field("layer.per_layer_input", SPECIAL, "layer", lambda x: x.per_layer_input, (LAYER, MODEL, TABLE),
          sources=("per_layer_input",)),
    Field("layer.output_scalar", SPECIAL, "layer", lambda x: x.output_scalar, (LAYER, TABLE),
          sources=("output_scalar",)),
)  # fmt: skip

WHOLE: tuple[Field, ...] = (
    Field("embedding.multiplier", EMBED, "model", multiplier, (MODEL,)),
    Field("embedding.norm", EMBED, "model", dig("embedding", "norm"), (MODEL, TABLE)),
    Field("embedding.project", EMBED, "model", dig("embedding", "project"), (MODEL, TABLE)),
    Field("embedding.positions", "position encoding", "model",
          lambda x: x.embedding.positions.kind if x.embedding.positions else None, (MODEL, TABLE)),
    Field("embedding.positions.offset", "position encoding", "model", dig("embedding", "positions", "offset"),
          (MODEL,)),
    Field("embedding.positions.learned_size", "position encoding", "model",
          dig("embedding", "positions", "learned_size"), (CONFIG,), "size"),
    Field("head.tied", EMBED, "model", dig("head", "tied"), (CONFIG, TABLE)),
    Field("head.bias", EMBED, "model", dig("head", "bias"), (MODEL, TABLE)),
    Field("head.multiplier", EMBED, "model", dig("head", "multiplier"), (CONFIG, MODEL)),
    Field("head.softcap", EMBED, "model", dig("head", "softcap"), (CONFIG, MODEL)),
    Field("per_layer_input", SPECIAL, "model", dig("per_layer_input"), (MODEL, LAYER, TABLE), presence=True),
    *inner(PerLayerInput, ("per_layer_input",), path="per_layer_input", item=SPECIAL, facet="model",
           affects=(CONFIG,), sizes=("vocab", "size")),
    Field("hyper_connections", SPECIAL, "model", dig("hyper_connections"), (LAYER, "model.py", TABLE), presence=True),
    *inner(HyperConnections, ("hyper_connections",), path="hyper_connections", item=SPECIAL, facet="model",
           affects=(CONFIG,)),
    Field("predict_layers", SPECIAL, "model", dig("predict_layers"), (TABLE,)),
    Field("residual_dtype", SPECIAL, "model", dig("residual_dtype"), (LAYER,)),
    Field("towers", SPECIAL, "model", towers, ("factory.py", TABLE)),
    Field("dtype", "config structure", "model", lambda x: x.dtype or "unspecified", (CONFIG, TABLE), "size"),
    Field("hidden", EMBED, "model", dig("hidden"), (CONFIG,), "size"),
    Field("layers", "heterogeneous layers", "model", lambda x: x.layers, (CONFIG, KV), "size"),
    Field("embedding.vocab", EMBED, "model", dig("embedding", "vocab"), (CONFIG,), "size"),
    Field("embedding.size", EMBED, "model",
          lambda x: x.embedding.size if x.embedding.size != x.hidden else "hidden", (CONFIG,), "size"),
    Field("max_positions", "position encoding", "model", dig("max_positions"), (CONFIG,), "size"),
)  # fmt: skip
