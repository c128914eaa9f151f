"""The coverage table: path of a compared value -> the rule that says what covers it."""

from __future__ import annotations

from typing import Any

from onboard.arch.blocks import Norm
from onboard.diff.coverage import Answer, Call, Code, Missing, Rule, Wiring, always, only, takes
from onboard.diff.rules_attention import ATTENTION
from onboard.diff.rules_mlp import DENSE
from onboard.diff.rules_moe import MIXTURE
from onboard.diff.rules_positions import POSITIONS
from onboard.diff.show import jsonable, text

INNER_NORMS = "post dense, pre moe, post moe)"
NORM_BLOCKS = {"rms": "RMSNorm", "layernorm": "LayerNorm"}


def norm_kind(value: str) -> Answer:
    """The blocks of nn/norm.py."""
    return Call(NORM_BLOCKS[value]) if value in NORM_BLOCKS else Missing(f"a {value} block")


def embedding_scale(value: Any) -> Answer:
    """Any factor, rounded to the table's dtype first."""
    shown = None if value == 1.0 else Code("hidden_size ** 0.5") if value == "sqrt(hidden)" else value
    return Call("VocabDimShardedEmbedding", (("scale", shown),))


def embedding_norm(value: Norm | None) -> Answer:
    """A norm in the model's own forward."""
    if value is None:
        return Call("VocabDimShardedEmbedding")
    if value.kind not in NORM_BLOCKS or value.gated or value.groups != 1 or (value.kind == "rms" and value.bias):
        return Missing("after the embedding: " + text(jsonable(value)))
    args: list[tuple[str, Any]] = [("eps", value.eps)]
    args += [("plus_one", True)] if value.plus_one else []
    args += [("weight", False)] if not value.weight else []
    args += [("bias", value.bias)] if value.kind == "layernorm" else []
    return Call(NORM_BLOCKS[value.kind], tuple(args), "after the embedding, in the model's forward")


def per_layer_norm(value: Norm) -> Answer:
    """A plain RMS norm of the projected embedding."""
    if value.eps is None or value != Norm("rms", value.eps):
        return Missing("another norm than a plain RMS one in PerLayerEmbedding")
    return Call("PerLayerEmbedding", (("eps", value.eps),))


def tied(value: bool) -> Answer:
    """A row of the checkpoint table."""
    if value:
        return Call("Tie", (("when", "tie_word_embeddings"),), "head shares the embedding's table")
    return Call("Map", (), "the head's own key, e.g. lm_head")


def norm_places(value: str) -> Answer:
    """Plain Python, but for norms around experts beside a dense MLP, which have a block of their own."""
    if not value.endswith(INNER_NORMS):
        return Wiring(f"{value} placement of the norms in the layer's forward")
    names = ("post_dense_norm", "pre_moe_norm", "post_moe_norm")
    return Call("MoEBesideMLP", tuple((name, Code("RMSNorm(...)")) for name in names))


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
    **POSITIONS,
    **DENSE,
    **MIXTURE,
    "norms.places": norm_places,
    "norms.kind": norm_kind,
    "norms.eps": takes("RMSNorm", "eps"),
    "norms.plus_one": takes("RMSNorm", "plus_one"),
    "norms.bias": only(False, "RMSNorm", "an RMS norm with a bias"),
    "norms.weight": takes("RMSNorm", "weight"),
    "norms.gated": only(False, "RMSNorm", "a gated norm"),
    "norms.groups": only(1, "RMSNorm", "a norm in {} groups"),
    "final_norm": only(True, "RMSNorm", "a frame without a last norm (DecoderModel.forward has one)"),
    "layer.parallel": lambda value: Wiring(
        "x + attn(n) + mlp(n) in the layer's forward" if value else "attention, then MLP, in the layer's forward"
    ),
    "layer.shared_norm": lambda value: Wiring(f"{'one norm' if value else 'two norms'} in the layer's constructor"),
    "layer.residual_scale": lambda value: Wiring(f"x + {value:g} * block(x) in the layer's forward"),
    "layer.per_layer_input": lambda value: Call("PerLayerInput", (), "added to the residual after the MLP") if value
    else Wiring("nothing to do, the part is not there"),
    "layer.norm_after_add": lambda value: Wiring(
        "norm(x + block(x)) in the layer's forward" if value else "x + block(norm(x)) or x + norm(block(x))"
    ),
    "layer.weights_of": only(None, "Attention", "a layer whose attention and MLP are those of an earlier one"),
    "layer.output_scalar": lambda value: Wiring("x * self.scalar, a parameter of the layer" if value else "no factor"),
    "embedding.multiplier": embedding_scale,
    "embedding.norm": embedding_norm,
    "embedding.extra_rows": lambda value: Call(
        "VocabDimShardedEmbedding", (("vocab_size", Code(f"vocab_size + {value}" if value else "vocab_size")),)
    ),
    "embedding.project": only(False, "VocabDimShardedEmbedding", "a projection after the embedding"),
    "head.tied": tied,
    "head.bias": takes("LMHead", "bias"),
    "head.multiplier": takes("LMHead", "multiplier"),
    "head.normalized": only(False, "LMHead", "a head with normalised rows"),
    "head.softcap": takes("LMHead", "softcap"),
    "per_layer_input": lambda value: Call("PerLayerEmbedding") if value
    else Wiring("nothing to do, the part is not there"),
    "per_layer_input.norm": per_layer_norm,
    "hyper_connections": always("parallel residual streams around each block"),
    "predict_layers": predict,
    "residual_dtype": always("a residual in float32"),
    "towers": lambda value: Wiring("nothing to do, the part is not there") if value == "none"
    else Missing(f"{value}; for text alone, Drop rows in the checkpoint table are enough"),
    "config.section": section,
    "quantization": quantization,
}  # fmt: skip


def layer_norm(norm: Norm) -> dict[str, Rule]:
    """What the fields mean where the norms of the target are layer norms, as its last one is: all arguments told."""
    args = (("eps", norm.eps), ("bias", norm.bias), ("weight", norm.weight), ("plus_one", norm.plus_one))
    kind = tuple((name, value) for name, value in args if name in ("eps", "bias") or value != (name == "weight"))
    rules: dict[str, Rule] = {f"norms.{name}": takes("LayerNorm", name) for name, _ in args}
    made = Call("LayerNorm", kind)
    return rules | {"norms.kind": lambda value: made if value == "layernorm" else norm_kind(value)}
