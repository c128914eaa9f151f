"""The coverage table: path of a compared value -> the rule that says what covers it."""

from __future__ import annotations

from typing import Any

from onboard.arch.blocks import Norm, Scaling
from onboard.diff.coverage import (
    ACTIVATIONS,
    ROTARY_KINDS,
    Answer,
    Call,
    Code,
    Missing,
    Rule,
    Wiring,
    always,
    only,
    takes,
)
from onboard.diff.rules_attention import ATTENTION
from onboard.diff.rules_moe import MIXTURE


def scaling(value: Scaling | str | None) -> Answer:
    """The kinds of table in nn/rotary.py, with their own parameters."""
    if value is None:
        return Call("RotaryConfig", (("kind", "default"),))
    kind = value.split(":")[0] if isinstance(value, str) else value.kind
    if isinstance(value, str) or kind not in ROTARY_KINDS:
        return Missing(f"the {kind} table in nn/rotary.py (it has {', '.join(ROTARY_KINDS)})")
    args: list[tuple[str, Any]] = [("kind", kind), ("factor", value.factor)]
    if kind == "llama3":
        args += [
            ("low_freq_factor", value.low_freq_factor),
            ("high_freq_factor", value.high_freq_factor),
            ("original_max_position", value.original_max_positions),
        ]
    return Call("RotaryConfig", tuple(args))


def rotary_part(value: str) -> Answer:
    """All of the head, or its first channels."""
    share = None if value == "all" else Code(f"int({value.split(' ')[0]} * head_size)")
    return Call("RotaryConfig", (("rotary_size", share),))


def activation(value: str) -> Answer:
    """The names that functional/mlp.py knows."""
    if value not in ACTIVATIONS:
        return Missing(f"activation {value} in functional/mlp.py (it has {', '.join(sorted(ACTIVATIONS))})")
    return Call("GatedMLP", (("act", ACTIVATIONS[value]),))


def mlp_bias(value: str) -> Answer:
    """All projections, or none."""
    if value not in ("none", "up and down"):
        return Missing(f"an MLP with a bias on {value} alone")
    return Call("GatedMLP", (("bias", value != "none"),))


def embedding_scale(value: Any) -> Answer:
    """Any factor, rounded to the table's dtype first."""
    shown = None if value == 1.0 else Code("hidden_size ** 0.5") if value == "sqrt(hidden)" else value
    return Call("VocabDimShardedEmbedding", (("scale", shown),))


def embedding_norm(value: Norm | None) -> Answer:
    """An RMS norm in the model's own forward."""
    if value is None:
        return Call("VocabDimShardedEmbedding")
    if value.kind != "rms" or value.bias or not value.weight:
        return Missing(f"a {value.kind} block after the embedding")
    return Call("RMSNorm", (("eps", value.eps),), "after the embedding, in the model's forward")


def tied(value: bool) -> Answer:
    """A row of the checkpoint table."""
    if value:
        return Call("Tie", (("when", "tie_word_embeddings"),), "head shares the embedding's table")
    return Call("Map", (), "the head's own key, e.g. lm_head")


def predict(value: int) -> Answer:
    """Serving works without them."""
    if not value:
        return Wiring("nothing to do, the part is not there")
    return Call("Drop", (("why", "next-token-prediction layers are not served"),))


def section(value: str) -> Answer:
    """Where the decoder's settings sit."""
    if value == "top":
        return Wiring("from_configs reads hf_config itself")
    return Wiring(f"from_configs reads hf_config.{value}; the checkpoint table takes the prefix of its keys")


def quantization(value: str) -> Answer:
    """No quantised checkpoint loads."""
    if value == "none":
        return Wiring("nothing to do, the weights are stored as dtype says")
    return Missing(f"loading of {value} weights (the loader refuses quantised checkpoints)")


RULES: dict[str, Rule] = {
    **ATTENTION,
    "layers.pattern": lambda value: Wiring("the model's constructor picks the arguments of layer i by its kind"),
    "layers.heads": takes("Attention", "heads"),
    "layers.kv_heads": takes("Attention", "kv_heads"),
    "layers.head_size_k": takes("Attention", "head_size"),
    "layers.mlp_size": takes("GatedMLP", "intermediate_size"),
    "state": always("the state mixer"),
    "attention.positions.base": takes("RotaryConfig", "base"),
    "attention.positions.rotary_dim": rotary_part,
    "attention.positions.interleaved": takes("RotaryConfig", "interleaved"),
    "attention.positions.leading": only(True, "RotaryConfig", "rotary on the last channels of the head"),
    "attention.positions.reverse": only(False, "RotaryConfig", "rotary by minus the angle in nn/rotary.py"),
    "attention.positions.dealt": only(None, "RotaryConfig", "the first {} frequencies dealt into even and odd ones"),
    "attention.positions.frequency_dim": only("rotary width", "RotaryConfig", "exponents over {} in nn/rotary.py"),
    "attention.positions.scaling": scaling,
    "attention.positions.mrope": only(None, "RotaryConfig", "multimodal positions, sections {} (text alone is plain)"),
    "embedding.positions": only(None, "VocabDimShardedEmbedding", "{} positions that are added to the embedding"),
    "mlp": lambda value: Call("GatedMLP") if value else Wiring("nothing to do, the part is not there"),
    "mlp.activation": activation,
    "mlp.gated": only(True, "GatedMLP", "a feed-forward block without a gate"),
    "mlp.bias": mlp_bias,
    "mlp.clamp": only(None, "GatedMLP", "limits on gate and up in GatedMLP ({})"),
    "mlp.down_norm": only(None, "GatedMLP", "a norm before the down projection ({})"),
    "mlp.fused": lambda value: Call("Map", (), "gate and up stored as one") if value
    else Call("Fuse", (), "gate and up stored apart"),
    **MIXTURE,
    "norms.places": lambda value: Wiring(f"{value} placement of the norms in the layer's forward"),
    "norms.kind": only("rms", "RMSNorm", "a {} block"),
    "norms.eps": takes("RMSNorm", "eps"),
    "norms.plus_one": takes("RMSNorm", "plus_one"),
    "norms.bias": only(False, "RMSNorm", "a norm with a bias"),
    "norms.weight": only(True, "RMSNorm", "a norm without a weight"),
    "norms.gated": only(False, "RMSNorm", "a gated norm"),
    "norms.groups": only(1, "RMSNorm", "a norm in {} groups"),
    "final_norm": only(True, "RMSNorm", "a frame without a last norm (DecoderModel.forward has one)"),
    "layer.parallel": lambda value: Wiring(
        "x + attn(n) + mlp(n) in the layer's forward" if value else "attention, then MLP, in the layer's forward"
    ),
    "layer.shared_norm": lambda value: Wiring(f"{'one norm' if value else 'two norms'} in the layer's constructor"),
    "layer.residual_scale": lambda value: Wiring(f"x + {value:g} * block(x) in the layer's forward"),
    "layer.per_layer_input": always("the layer's gate for its own embedding of each token"),
    "layer.norm_after_add": lambda value: Wiring(
        "norm(x + block(x)) in the layer's forward" if value else "x + block(norm(x)) or x + norm(block(x))"
    ),
    "layer.weights_of": only(None, "Attention", "a layer whose attention and MLP are those of an earlier one"),
    "layer.output_scalar": always("a stored scalar on the layer's output"),
    "embedding.multiplier": embedding_scale,
    "embedding.norm": embedding_norm,
    "embedding.extra_rows": only(0, "VocabDimShardedEmbedding", "a table of {} rows more than the head has logits"),
    "embedding.project": only(False, "VocabDimShardedEmbedding", "a projection after the embedding"),
    "head.tied": tied,
    "head.bias": takes("LMHead", "bias"),
    "head.multiplier": only(1.0, "LMHead", "a factor {} on the logits in LMHead"),
    "head.normalized": only(False, "LMHead", "a head with normalised rows"),
    "head.softcap": takes("LMHead", "softcap"),
    "per_layer_input": always("the table of per-layer embeddings and its projection"),
    "hyper_connections": always("parallel residual streams around each block"),
    "predict_layers": predict,
    "residual_dtype": always("a residual in float32"),
    "towers": lambda value: Wiring("nothing to do, the part is not there") if value == "none"
    else Missing(f"{value}; for text alone, Drop rows in the checkpoint table are enough"),
    "config.section": section,
    "quantization": quantization,
}  # fmt: skip
