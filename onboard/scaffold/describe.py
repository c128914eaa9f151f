"""What was detected, in words: rows for a package's README and one line for the docstring of its model."""

from __future__ import annotations

from collections.abc import Iterator

from onboard.arch.blocks import MLP, Attention, Layer, MoE, Positions
from onboard.arch.spec import ArchSpec

PLACES = {
    "pre": "pre-norm layers",
    "post": "norms after the blocks",
    "sandwich": "norms before and after the blocks",
    "parallel": "attention and MLP side by side",
    "after the sum": "norms after the sums",
    "none": "layers without norms",
}


def rows(spec: ArchSpec) -> tuple[tuple[str, str], ...]:
    """(feature, value) for people."""
    found = [("layers", f"{spec.layers}, {len(spec.kinds)} kind{'s' if len(spec.kinds) > 1 else ''}")]
    found.append(("hidden size", str(spec.hidden)))
    for index, kind in enumerate(spec.kinds):
        name = f"kind {index + 1} ({spec.count_of(index)} layers)" if len(spec.kinds) > 1 else "each layer"
        found.append((name, "; ".join(layer_words(kind))))
    head = "tied to the embedding" if spec.head.tied else "with a matrix of its own"
    if spec.head.softcap:
        head += f", soft cap {spec.head.softcap:g}"
    if spec.head.multiplier != 1.0:
        head += f", logits times {spec.head.multiplier:g}"
    scale = f", times {spec.embedding.multiplier:.6g}" if spec.embedding.multiplier != 1.0 else ""
    found.append(("embedding", f"{spec.embedding.vocab} tokens{scale}"))
    found.append(("head", head))
    if spec.max_positions:
        found.append(("positions", str(spec.max_positions)))
    return tuple(found)


def layer_words(layer: Layer) -> Iterator[str]:
    """The parts of one kind of layer."""
    yield PLACES[layer.norm_places]
    if layer.attention is not None:
        yield attention_words(layer.attention)
    if layer.state is not None:
        yield f"{layer.state.kind} mixer"
    if layer.moe is not None:
        yield moe_words(layer.moe)
    elif layer.mlp is not None:
        yield mlp_words(layer.mlp)


def attention_words(a: Attention) -> str:
    """Kind, heads and options."""
    sizes = f"{a.heads} query and {a.kv_heads} KV heads of {a.head_size_k}"
    words = [f"{a.kind} attention, {sizes}", positions_words(a.positions)]
    words += [f"window {a.window}"] if a.window else []
    words += [f"chunk {a.chunk}"] if a.chunk else []
    if a.qk_norm is not None:
        words.append(f"queries and keys normed ({a.qk_norm.width}, {a.qk_norm.place.replace('_', ' ')})")
    words += [f"bias on {', '.join(n for n, on in _biases(a) if on)}"] if any(on for _, on in _biases(a)) else []
    words += [f"soft cap {a.softcap:g}"] if a.softcap else []
    words += ["sinks"] if a.sinks else []
    words += ["values are the keys"] if a.k_eq_v else []
    words += [f"{a.output_gate} gate on the output"] if a.output_gate else []
    words += [f"reads the cache of layer {a.shared_kv}"] if a.shared_kv is not None else []
    return ", ".join(words)


def _biases(a: Attention) -> tuple[tuple[str, bool], ...]:
    return ("q", a.q_bias), ("k", a.k_bias), ("v", a.v_bias), ("o", a.o_bias)


def positions_words(p: Positions) -> str:
    """Rotary with its options, or what there is in its place."""
    if p.kind != "rotary":
        return "no positions" if p.kind == "none" else f"{p.kind} positions"
    words = "interleaved rotary" if p.interleaved else "rotary"
    if p.scaling is not None:
        words += f" ({p.scaling.kind})"
    return f"{words} on {p.rotary_dim} channels, base {p.base:g}" if p.base else words


def mlp_words(m: MLP) -> str:
    """Width and activation."""
    return f"{'gated' if m.gated else 'plain'} MLP of {m.size}, {m.activation}"


def moe_words(m: MoE) -> str:
    """Experts and router."""
    shared = f", shared expert of {m.shared.size}" if m.shared is not None else ""
    return f"{m.top_k} of {m.experts} experts of {m.size}, {m.activation}, {m.router.score} router{shared}"


def summary(spec: ArchSpec) -> str:
    """One line for the model's docstring."""
    words = [PLACES[spec.kinds[0].norm_places]]
    attentions = [k.attention for k in spec.kinds if k.attention is not None]
    if attentions:
        a = attentions[0]
        kind = "latent" if a.latent else ("multi-head" if a.heads == a.kv_heads else "grouped-query")
        windowed = any(x.window for x in attentions)
        words.append(f"{kind} attention{', windows' if windowed else ''}{' with sinks' if a.sinks else ''}")
        if a.qk_norm is not None:
            words.append("normed queries and keys")
    if any(k.moe for k in spec.kinds):
        words.append("mixture of experts")
    else:
        m = next((k.mlp for k in spec.kinds if k.mlp), None)
        words += [f"{'gated' if m.gated else 'plain'} MLP"] if m is not None else []
    return ", ".join(words)
