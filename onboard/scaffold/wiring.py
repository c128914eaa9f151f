"""``ArchSpec`` -> the blocks of ``vllm_neuron.nn`` that compute it: the one place that knows both.

What no block can do is not left out: it is an :class:`Open` entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onboard.arch.blocks import Attention, Layer, Positions, QKNorm
from onboard.arch.spec import ArchSpec
from onboard.scaffold.calls import Arg, Call, Index, Rotating
from onboard.scaffold.wiring_mlp import beside, mlp, moe
from onboard.scaffold.wiring_norm import head_norm, norm


@dataclass(frozen=True)
class Open:
    """A feature that nothing here computes: its name, the Hugging Face class that does, and a hint where."""

    feature: str
    hf_class: str = ""
    where: str = ""


@dataclass(frozen=True)
class Wiring:
    """The blocks of a model.

    Attributes:
        frame: name -> block around the layers (embed, positions, embed_norm, norm, head).
        layers: for each layer, name -> block, or a plain value (``residual_scale``).
        shape: how a layer's blocks are joined, see :func:`shape`.
        positions: the rotary settings in use, by key ("" when there is one).
        open: what is missing.
    """

    frame: dict[str, Any]
    layers: tuple[dict[str, Any], ...]
    shape: str
    positions: dict[str, tuple[Positions, int]]
    open: tuple[Open, ...]


def wire(spec: ArchSpec, layer_types: tuple[str, ...] = ()) -> Wiring:
    """The blocks of a spec.

    Args:
        spec: the model.
        layer_types: for each layer the key under which the config has its rotary settings, or () when there is one
            block of settings.
    """
    missing = list(open_features(spec))
    shapes = {shape(kind) for kind in spec.kinds}
    if len(shapes) > 1:
        missing.append(Open(f"layers joined in different ways ({', '.join(sorted(shapes))})"))
    layers: list[dict[str, Any]] = []
    positions: dict[str, tuple[Positions, int]] = {}
    for index, layer in enumerate(spec):
        key = layer_types[index] if layer_types else ""
        layers.append(_layer(spec, layer, index, key))
        mixer = layer.attention
        if mixer is not None and mixer.positions.kind == "rotary":
            positions.setdefault(key, (mixer.positions, _rotary_head(mixer)))
    return Wiring(_frame(spec), tuple(layers), sorted(shapes)[0], positions, tuple(dict.fromkeys(missing)))


def _rotary_head(attention: Attention) -> int:
    return attention.latent.rope_size if attention.latent else attention.head_size_k


def shape(layer: Layer) -> str:
    """``parallel`` (one norm), ``parallel2`` (a norm each), ``after`` (norm after the sum) or ``serial``."""
    if layer.parallel:
        return "parallel" if layer.shared_norm else "parallel2"
    return "after" if getattr(layer, "norm_after_add", False) else "serial"


def open_features(spec: ArchSpec) -> list[Open]:
    """What the spec says and no block computes, and what the spec itself has no word for."""
    found = [Open(b.feature, b.hf_class, b.where) for b in spec.beyond]
    if spec.hyper_connections is not None:
        found.append(Open("hyper_connections"))
    if spec.head.normalized:
        found.append(Open("normalized_head"))
    if spec.embedding.project:
        found.append(Open("projected_embedding"))
    for layer in spec.kinds:
        if layer.state is not None:
            found.append(Open(layer.state.kind))
        if layer.attention is not None:
            found += _open_attention(layer.attention)
        if layer.moe is not None:
            found += _open_moe(layer)
    return found


def _open_attention(a: Attention) -> list[Open]:
    wrong = {
        "sparse_indexer": a.indexer is not None,
        "compressed_attention": a.compressor is not None or a.kind == "compressed",
        "grouped_output_projection": a.o_groups is not None,
        "single_kv_entry": a.single_cache,
        "output_turned_back": a.undo_rope,
        "low_rank_query": a.q_rank is not None and a.latent is None,
        "query_norm_unlike_key_norm": a.qk_norm is not None and a.qk_norm.query_norm is not None,
        "narrow_attention_input": a.input_size is not None,
        f"{a.positions.kind}_positions_in_attention": a.positions.kind not in ("rotary", "none", "alibi", "learned",
                                                                              "sinusoidal"),
    }  # fmt: skip
    return [Open(name) for name, is_so in wrong.items() if is_so]


def _open_moe(layer: Layer) -> list[Open]:
    moe = layer.moe
    assert moe is not None
    wrong = {
        "moe_beside_dense_mlp": layer.mlp is not None and layer.norms.post_dense is None,
        "latent_experts": moe.latent_size is not None,
        "hash_routing": moe.router.hash,
        "router_input_norm": moe.router.input_norm is not None and moe.router.input_norm.weight,
    }
    return [Open(name) for name, is_so in wrong.items() if is_so]


def _frame(spec: ArchSpec) -> dict[str, Any]:
    e, hidden = spec.embedding, spec.hidden
    frame: dict[str, Any] = {
        "embed": Call(
            "VocabDimShardedEmbedding",
            (
                Arg("", e.vocab + e.extra_rows, "embedding.vocab"),
                Arg("", e.size, "embedding.size" if e.size != hidden else "hidden"),
                Arg("scale", e.multiplier, "embedding.multiplier", 1.0),
            ),
        ),
        "positions": _positions(e.positions, hidden),
        "per_layer": _per_layer(spec),
        "embed_norm": norm(e.norm, hidden, "hidden", "embedding.norm"),
        "norm": norm(spec.final_norm, hidden, "hidden", "final_norm"),
        "head": Call(
            "LMHead",
            (
                Arg("", hidden, "hidden"),
                Arg("", e.vocab, "embedding.vocab"),
                Arg("bias", spec.head.bias, "head.bias", False),
                Arg("softcap", spec.head.softcap, "head.softcap", None),
                Arg("multiplier", spec.head.multiplier, "head.multiplier", 1.0),
            ),
        ),
    }
    return frame


def _per_layer(spec: ArchSpec) -> Call | None:
    p = spec.per_layer_input
    if p is None:
        return None
    path = "per_layer_input"
    return Call(
        "PerLayerEmbedding",
        (
            Arg("", p.vocab, f"{path}.vocab"),
            Arg("", spec.layers, "layers"),
            Arg("", p.size, f"{path}.size"),
            Arg("", spec.hidden, "hidden"),
            Arg("eps", p.norm.eps, f"{path}.norm.eps"),
        ),
    )


def _layer_input(spec: ArchSpec, layer: Layer) -> Call | None:
    p = spec.per_layer_input
    if p is None or not layer.per_layer_input:
        return None
    act = layer.mlp.activation if layer.mlp is not None else None
    return Call(
        "PerLayerInput",
        (
            Arg("", spec.hidden, "hidden"),
            Arg("", p.size, "per_layer_input.size"),
            Arg("act", act, "mlp.activation"),
            Arg("eps", p.norm.eps, "per_layer_input.norm.eps"),
        ),
    )


def _positions(p: Positions | None, hidden: int) -> Call | None:
    if p is None or p.kind not in ("learned", "sinusoidal"):
        return None
    size = Arg("", hidden, "hidden")
    if p.kind == "learned":
        rows = Arg("", p.learned_size, "embedding.positions.learned_size")
        return Call("LearnedPositions", (rows, size, Arg("offset", p.offset, "embedding.positions.offset", 0)))
    base = Arg("base", p.base or 10000.0, "embedding.positions.base", 10000.0)
    frequency = Arg("frequency_size", p.frequency_dim, "embedding.positions.frequency_dim", None)
    offset = Arg("offset", p.offset, "embedding.positions.offset", 0)
    return Call("SinusoidalPositions", (size, base, frequency, offset))


def _layer(spec: ArchSpec, layer: Layer, index: int, key: str) -> dict[str, Any]:
    hidden, n = spec.hidden, layer.norms
    blocks: dict[str, Any] = {"attn_norm": norm(n.pre_mixer, hidden, "hidden", "norms")}
    blocks["attn"] = None if layer.attention is None else attention(layer.attention, hidden, key)
    blocks["post_attn_norm"] = norm(n.post_mixer, hidden, "hidden", "norms")
    blocks["mlp_norm"] = norm(n.pre_mlp, hidden, "hidden", "norms")
    if layer.moe is not None and layer.mlp is not None:
        blocks["mlp"] = beside(layer.mlp, layer.moe, n, hidden)
    else:
        blocks["mlp"] = moe(layer.moe, hidden) if layer.moe is not None else mlp(layer.mlp, hidden)
    blocks["post_mlp_norm"] = norm(n.post_mlp, hidden, "hidden", "norms")
    blocks["layer_input"] = _layer_input(spec, layer)
    blocks["residual_scale"] = layer.residual_scale
    blocks["output_scalar"] = layer.output_scalar
    return blocks


def attention(a: Attention, hidden: int, key: str) -> Call:
    """The attention block, latent or not."""
    turning = Rotating(key) if a.positions.kind == "rotary" else None
    if a.latent is not None:
        return _latent(a, hidden, turning)
    biases = (a.q_bias, a.k_bias, a.v_bias)
    plain = len(set(biases)) == 1
    args = [
        Arg("", Index()),
        Arg("", hidden, "hidden"),
        Arg("heads", a.heads, "attention.heads"),
        Arg("kv_heads", a.kv_heads, "attention.kv_heads"),
        Arg("head_size", a.head_size_k, "attention.head_size_k"),
        Arg("head_size_v", a.head_size_v, "attention.head_size_v", a.head_size_k),
        Arg("rotary", turning, "attention.positions"),
        Arg("bias", biases[0] if plain else biases, "attention.q_bias", False),
        Arg("o_bias", a.o_bias, "attention.o_bias", False),
        Arg("qk_norm", qk_norm(a.qk_norm), "attention.qk_norm", None),
        Arg("v_norm", head_norm(a.v_norm, "attention.v_norm"), "attention.v_norm", None),
        Arg("out_norm", head_norm(a.out_norm, "attention.out_norm", "full"), "attention.out_norm", None),
        Arg("k_eq_v", a.k_eq_v, "attention.k_eq_v", False),
        Arg("scale", a.scale, "attention.scale", a.head_size_k**-0.5),
        Arg("window", a.window, "attention.window", None),
        Arg("chunk", a.chunk, "attention.chunk", None),
        Arg("softcap", a.softcap, "attention.softcap", None),
        Arg("sinks", a.sinks, "attention.sinks", False),
        Arg("value_scale", a.value_scale, "attention.value_scale", 1.0),
        Arg("output_gate", a.output_gate, "attention.output_gate", None),
        Arg("gate_act", a.gate_act, "attention.gate_act", "sigmoid"),
        Arg("clip", a.clip_qkv, "attention.clip_qkv", None),
        Arg("alibi", _alibi(a), "attention.positions", None),
        Arg("shared_with", a.shared_kv, "attention.shared_kv", None),
        Arg("query_growth", _growth(a), "attention.query_growth", None),
    ]
    return Call("Attention", tuple(args))


def _growth(a: Attention) -> Call | None:
    """Growth of the queries: on layers without positions (Llama 4), or with the rotary scaling (Ministral 3)."""
    scaling = a.positions.scaling
    if a.query_growth_floor is not None:
        floor = Arg("", a.query_growth_floor, "attention.query_growth_floor")
        return Call("QueryGrowth", (floor, Arg("", a.query_growth_beta, "attention.query_growth_beta")))
    if scaling is not None and scaling.query_beta is not None:
        floor = Arg("", scaling.original_max_positions, "attention.positions.scaling.original")
        beta = Arg("", scaling.query_beta, "attention.positions.scaling.query_beta")
        return Call("QueryGrowth", (floor, beta, Arg("offset", 0, "", 1)))
    return None


def _alibi(a: Attention) -> Call | None:
    return Call("Alibi") if a.positions.kind == "alibi" else None


def qk_norm(q: QKNorm | None) -> Call | None:
    """The norm of queries and keys."""
    if q is None:
        return None
    return head_norm(q.norm, "attention.qk_norm", q.width, q.place == "after_rope")


def _latent(a: Attention, hidden: int, turning: Rotating | None) -> Call:
    m = a.latent
    assert m is not None
    return Call(
        "LatentAttention",
        (
            Arg("", Index()),
            Arg("", hidden, "hidden"),
            Arg("heads", a.heads, "attention.heads"),
            Arg("q_rank", m.q_rank, "attention.latent.q_rank"),
            Arg("kv_rank", m.kv_rank, "attention.latent.kv_rank"),
            Arg("nope_size", m.nope_size, "attention.latent.nope_size"),
            Arg("rope_size", m.rope_size, "attention.latent.rope_size"),
            Arg("head_size_v", a.head_size_v, "attention.head_size_v"),
            Arg("rotary", turning, "attention.positions"),
            Arg("eps", m.norm.eps, "attention.latent.norm.eps"),
            Arg("q_bias", a.q_bias, "attention.q_bias", False),
            Arg("kv_bias", a.k_bias, "attention.k_bias", False),
            Arg("o_bias", a.o_bias, "attention.o_bias", False),
            Arg("scale", a.scale, "attention.scale", (m.nope_size + m.rope_size) ** -0.5),
            Arg("kv_scale", m.kv_scale, "attention.latent.kv_scale", 1.0),
        ),
    )
