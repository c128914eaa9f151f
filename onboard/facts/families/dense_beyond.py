"""Dense families that compute something no field of the spec can say; each such part is named in ``beyond``."""

from __future__ import annotations

import dataclasses
import math

from onboard.arch.blocks import MLP, Attention, Layer, LayerNorms, Norm, QKNorm
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts import rope
from onboard.facts.families import common, dense, gemma4, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

MLLAMA_EXTRA_ROWS = 8


def _attention(spec: ArchSpec) -> Attention:
    attention = spec.layer(0).attention
    assert attention is not None
    return attention


def build_cpmant(r: Reader, family: Family) -> ArchSpec:
    """CPM-Ant: a learned prompt before the text, biases by relative position, every token sees every other."""
    r.settle("hidden_act", "gelu", "the reference's code")
    types, length = r.integer("prompt_types"), r.integer("prompt_length")
    segments, buckets = r.integer("segment_types"), r.integer("position_bias_num_buckets")
    r.use("position_bias_max_distance")
    spec = dense.build(r, family)
    n = _attention(spec).heads
    beyond = (
        Beyond("relative position bias", "CpmAntSegmentPositionEmbedding", "the scores of every layer",
               (segments**2 + buckets) * n),
        Beyond("learned prompt", "CpmAntModel", f"{length} rows of the token table before the text"),
        Beyond("segment embedding", "CpmAntModel", "added to the token embedding", segments * spec.hidden),
        Beyond("bidirectional attention", "CpmAntModel", "the mask of every layer"),
    )  # fmt: skip
    r.known("embedding.extra_rows")
    return dataclasses.replace(
        spec,
        embedding=dataclasses.replace(spec.embedding, extra_rows=types * length),
        beyond=beyond,
    )


def build_diffllama(r: Reader, family: Family) -> ArchSpec:
    """DiffLlama: the difference of two attentions with a learned factor, normalised."""
    r.use("lambda_std_dev")
    spec = dense.build(r, family)
    a = _attention(spec)
    if a.kv_heads % 2:
        raise r.wrong("num_key_value_heads", a.kv_heads, "an even number of KV heads")
    size = 4 * a.head_size_k * spec.layers
    beyond = (Beyond("differential attention", "DiffLlamaAttention", "every layer", size),)
    return dataclasses.replace(spec, beyond=beyond)


def build_doge(r: Reader, family: Family) -> ArchSpec:
    """Doge: a mask computed from the values, a learned weight on the residual, and optionally product-key experts."""
    r.use("keep_window_size", "sliding_window", "num_experts", "num_experts_per_tok", "norm_topk_prob")
    spec = dense.build(r, family)
    a, h = _attention(spec), spec.hidden
    k = a.kv_heads
    mask = k + k * a.head_size_v * k + k * a.k_bias
    beyond: tuple[Beyond, ...] = (
        Beyond("dynamic mask", "DogeAttention", "every layer", mask * spec.layers),
        Beyond("learned residual scale", "DogeDecoderLayer", "both sums of every layer", 2 * h * spec.layers),
    )
    if r.flag("is_moe"):
        experts = r.integer("num_experts")
        size = (2 * math.isqrt(experts) + 2 * experts) * h * spec.layers
        beyond += (Beyond("product-key experts", "DogeCDMoE", "beside the MLP of every layer", size),)
    return dataclasses.replace(spec, beyond=beyond)


def build_hrm(r: Reader, family: Family) -> ArchSpec:
    """HRM: two stacks of layers that are passed many times; the spec lists each stored layer once."""
    stack = r.maybe_integer("num_layers_per_stack", "layers", maximum=common.MAX_LAYERS)
    if stack is None:
        stack = r.integer("num_hidden_layers", "layers", maximum=common.MAX_LAYERS)
    high, low = r.integer("H_cycles"), r.integer("L_cycles")
    r.use("L_bp_cycles", "prefix_lm")
    r.settle("num_hidden_layers", 2 * stack, "2 * num_layers_per_stack")
    if r.maybe_decimal("embedding_scale") is None:
        spread = r.maybe_decimal("initializer_range", minimum=1e-12) or 0.02
        r.settle("embedding_scale", 1.0 / spread, "1 / initializer_range")

    def gated(one: Layer) -> Layer:
        assert one.attention is not None
        return dataclasses.replace(one, attention=dataclasses.replace(one.attention, output_gate="channel"))

    r.known("attention.output_gate")
    spec = common.each(dense.build(r, family), gated)
    passes = f"stacks of {stack} layers, the first {low} times, then the second once, all of it {high} times"
    beyond = (Beyond("recurrent depth", "HrmTextModel", passes, spec.hidden),)
    return dataclasses.replace(spec, beyond=beyond)


def build_mllama(r: Reader, family: Family) -> ArchSpec:
    """Llama 3.2 Vision: layers that attend to an image, which text alone passes by unchanged."""
    spec = dense.build(r, family)
    listed = r.maybe_list("cross_attention_layers", int, "layers.kinds") or ()
    crossing = [i for i in range(spec.layers) if i in listed]
    a, h = _attention(spec), spec.hidden
    mlp = spec.layer(0).mlp
    assert mlp is not None
    q, kv = a.heads * a.head_size_k, a.kv_heads * a.head_size_k
    size = 2 * h * q + 2 * h * kv + 2 * a.head_size_k + 2 * h + 2 + 3 * h * mlp.size
    layers = [Layer() if i in crossing else one for i, one in enumerate(spec)]
    where = "layers " + ", ".join(map(str, crossing))
    beyond = (Beyond("cross attention", "MllamaCrossAttentionDecoderLayer", where, size * len(crossing)),)
    r.known("embedding.extra_rows")
    return dataclasses.replace(
        common.regroup(spec, layers),
        embedding=dataclasses.replace(spec.embedding, extra_rows=MLLAMA_EXTRA_ROWS),
        beyond=beyond if crossing else (),
    )


def build_gemma3n(r: Reader, family: Family) -> ArchSpec:
    """Gemma 3n: four versions of the residual (AltUp), a low-rank branch (Laurel), sparse activations in early layers,
    shared caches and per-layer inputs."""
    hidden, n = common.hidden_size(r), common.layer_count(r)
    common.causal_only(r)
    types = windows.attention_types(r, family, n)
    shared = r.maybe_integer("num_kv_shared_layers", "attention.shared_kv", minimum=0) or 0
    if shared > n:
        raise r.wrong("num_kv_shared_layers", shared, f"at most the {n} layers")
    sources = [gemma4.cache_of(types, i, n - shared) for i in range(n)]
    sizes = _sizes(r, n)

    def make(signature: tuple[str, int | None, int]) -> Layer:
        layer_type, source, size = signature
        with r.layer(layer_type.split("_")[0]):
            return _gemma3n_layer(r, family, hidden, layer_type, source, size)

    kinds, index = common.distinct(list(zip(types, sources, sizes, strict=True)), make)
    spec = common.finish(r, family, kinds, index)
    return dataclasses.replace(
        spec, per_layer_input=gemma4.per_layer_input(r, family), beyond=_gemma3n_beyond(r, hidden, n)
    )


def _sizes(r: Reader, n: int) -> list[int]:
    """The MLP's width of each layer: one number for all, or a list."""
    value = r.find("intermediate_size", "mlp.size")[0]
    sizes = value if isinstance(value, list) else [value] * n
    if len(sizes) != n or any(type(s) is not int or not 0 < s <= common.MAX_WIDTH for s in sizes):
        raise r.wrong("intermediate_size", value, f"a positive integer, or one for each of the {n} layers")
    return sizes


def _gemma3n_layer(r: Reader, family: Family, hidden: int, layer_type: str, source: int | None, size: int) -> Layer:
    one = common.norm(r, family)
    n, k = common.heads(r)
    head = common.head_size(r, n, hidden)
    sliding = layer_type == windows.SLIDING
    bias = r.flag("attention_bias", "attention.q_bias")
    r.known("attention.scale", "attention.qk_norm", "attention.qk_norm.place", "attention.v_norm", "norms.places")
    return Layer(
        attention=Attention(
            kind="sliding" if sliding else "full",
            heads=n,
            kv_heads=k,
            head_size_k=head,
            head_size_v=head,
            positions=rope.rotary(r, head, layer_type=layer_type),
            scale=1.0,
            q_bias=bias,
            k_bias=bias,
            v_bias=bias,
            o_bias=bias,
            qk_norm=QKNorm(one),
            v_norm=Norm("rms", one.eps, weight=False),
            window=r.integer("sliding_window", "attention.window") if sliding else None,
            shared_kv=source,
        ),
        mlp=MLP(size, common.activation(r, family)),
        norms=LayerNorms(one, one, one, one),
        per_layer_input=True,
    )


def _gemma3n_beyond(r: Reader, hidden: int, n: int) -> tuple[Beyond, ...]:
    copies, rank = r.integer("altup_num_inputs"), r.integer("laurel_rank")
    r.use("altup_active_idx", "altup_coef_clip", "altup_correct_scale")
    altup = n * (2 * hidden + copies * hidden + copies**2 + copies**3) + 2 * (copies - 1) * hidden**2
    beyond: tuple[Beyond, ...] = (
        Beyond("altup", "Gemma3nTextAltUp", f"{copies} versions of the residual", altup),
        Beyond("laurel", "Gemma3nTextLaurelBlock", "beside every attention", n * (2 * hidden * rank + hidden)),
    )
    sparse = r.find("activation_sparsity_pattern")[0]
    if sparse is None:
        sparse = [0.95] * 10 if n > 10 else []
    values = sparse if isinstance(sparse, list) else [sparse]
    count = sum(r.number("activation_sparsity_pattern", s, 0.0) > 0 for s in values)
    if count:
        beyond += (Beyond("sparse activation", "Gemma3nTextMLP", f"the gate of {count} layers"),)
    return beyond
