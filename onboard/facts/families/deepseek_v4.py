"""DeepSeek V4: one shared KV head, a window plus compressed history, grouped output, hyper-connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onboard.arch.blocks import (
    MLP,
    Attention,
    Compressor,
    Indexer,
    Layer,
    MoE,
    Norm,
    Positions,
    QKNorm,
    Router,
    Scaling,
)
from onboard.arch.spec import ArchSpec, HyperConnections
from onboard.facts import rope
from onboard.facts.families import common, dense, moe
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

WINDOW, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}
SCORES = ("sqrtsoftplus", "softmax", "sigmoid")


def build(r: Reader, family: Family) -> ArchSpec:
    """The architecture of a DeepSeek V4 model."""
    n = common.layer_count(r)
    types, hashed = layer_types(r, n), hash_layers(r, n)

    def make(signature: tuple[str, bool]) -> Layer:
        layer_type, by_hash = signature
        with r.layer("sliding" if layer_type == WINDOW else layer_type.removesuffix("_attention")):
            return Layer(
                attention=attention(r, family, layer_type),
                moe=experts(r, family, by_hash=by_hash),
                norms=dense.norms(r, family),
            )

    kinds, index = common.distinct(list(zip(types, hashed, strict=True)), make)
    spec = common.finish(r, family, kinds, index)
    streams = HyperConnections(
        r.integer("hc_mult", "hyper_connections.streams", maximum=1024),
        r.integer("hc_sinkhorn_iters", "hyper_connections.sinkhorn_iterations"),
        r.decimal("hc_eps", "hyper_connections.eps"),
    )
    r.use("compress_ratios", "compress_rates", "rope_scaling", "dspark_block_size", "dspark_noise_token_id",
          "dspark_target_layer_ids", "dspark_markov_rank")  # fmt: skip
    if r.has("dspark_block_size"):
        r.notes.append("dspark_* describes a draft model beside this one; it is not counted")
    return dataclasses.replace(spec, hyper_connections=streams)


def layer_types(r: Reader, n: int) -> list[str]:
    """The attention of each layer, by name or by the ratios of older configs (extra entries are for prediction layers).

    Raises:
        ConfigError: too few entries, or one that is not known.
    """
    at = "layers.kinds"
    names: Sequence[str] | None = r.maybe_list("layer_types", str, at)
    if names is None:
        ratios = r.maybe_list("compress_ratios", int, at)
        if ratios is not None:
            if set(ratios) - set(RATIOS):
                raise r.wrong("compress_ratios", ratios, "0, 4 or 128 for each layer")
            names = [RATIOS[x] for x in ratios]
    if names is None:
        r.known(at)
        names = [HEAVY] * min(n, 2) + [SPARSE if i % 2 else HEAVY for i in range(max(n - 2, 0))]
    if len(names) < n:
        raise r.wrong("layer_types", f"{len(names)} entries", f"one for each of the {n} layers")
    if set(names) - set(RATIOS.values()):
        raise r.wrong("layer_types", sorted(set(names)), "one of " + ", ".join(RATIOS.values()))
    return list(names[:n])


def hash_layers(r: Reader, n: int) -> list[bool]:
    """Layers whose experts are chosen by token id."""
    names = r.maybe_list("mlp_layer_types", str, "moe.router.hash")
    if names is not None:
        if len(names) < n or set(names) - {"hash_moe", "moe"}:
            raise r.wrong("mlp_layer_types", names, f"hash_moe or moe for each of {n} layers")
        r.use("num_hash_layers")
        return [name == "hash_moe" for name in names[:n]]
    first = r.maybe_integer("num_hash_layers", "moe.router.hash", minimum=0)
    return [i < (3 if first is None else first) for i in range(n)]


def attention(r: Reader, family: Family, layer_type: str) -> Attention:
    """The attention of one kind of layer."""
    n = r.integer("num_attention_heads", "attention.heads")
    size = r.integer("head_dim", "attention.head_size_k")
    r.record("attention.head_size_v", r.sources["attention.head_size_k"])
    if r.integer("num_key_value_heads", "attention.kv_heads") != 1:
        raise r.wrong("num_key_value_heads", r.integer("num_key_value_heads"), "1: keys and values are shared")
    one = common.norm(r, family)
    groups = r.integer("o_groups", "attention.o_groups")
    if n * size % groups:
        raise r.wrong("o_groups", groups, f"a divisor of heads times head size, {n * size}")
    r.known("attention.qk_norm", "attention.qk_norm.place", "attention.sinks", "attention.single_cache")
    r.derived("attention.scale", "1 / sqrt(head size)")
    return Attention(
        kind="sliding" if layer_type == WINDOW else "compressed",
        heads=n,
        kv_heads=1,
        head_size_k=size,
        head_size_v=size,
        positions=positions(r, size, compressed=layer_type != WINDOW),
        scale=size**-0.5,
        qk_norm=QKNorm(one, query_norm=Norm("rms", one.eps, weight=False)),
        k_eq_v=True,
        single_cache=True,
        q_rank=r.integer("q_lora_rank", "attention.q_rank"),
        undo_rope=True,
        window=r.integer("sliding_window", "attention.window"),
        sinks=True,
        indexer=indexer(r) if layer_type == SPARSE else None,
        compressor=compressor(r, layer_type),
        o_groups=groups,
        o_rank=r.integer("o_lora_rank", "attention.o_rank"),
    )


def compressor(r: Reader, layer_type: str) -> Compressor | None:
    """The long-range branch of one kind of layer."""
    if layer_type == WINDOW:
        return None
    rates = r.maybe_mapping("compress_rates") or {}
    rate = rates.get(layer_type, 4 if layer_type == SPARSE else 128)
    if type(rate) is not int or rate < 1:
        raise r.wrong("compress_rates", rate, "a positive integer for each kind of layer")
    r.record_written("attention.compressor.rate", "compress_rates", layer_type in rates)
    return Compressor(rate, overlap=layer_type == SPARSE)


def indexer(r: Reader) -> Indexer:
    """The indexer over compressed entries."""
    return Indexer(
        r.integer("index_n_heads", "attention.indexer.heads"),
        r.integer("index_head_dim", "attention.indexer.head_size"),
        r.integer("index_topk", "attention.indexer.top_k"),
        interleaved=True,
    )


def positions(r: Reader, size: int, *, compressed: bool) -> Positions:
    """Plain rope with the main base on window layers; the scaled rope with its own base on compressed ones. Older
    configs keep one scaling for the compressed layers, without yarn's correction of the magnitude."""
    part = r.maybe_integer("qk_rope_head_dim", "attention.positions.rotary_dim", maximum=size)
    if part is None:
        part = int(size * (r.maybe_decimal("partial_rotary_factor", "attention.positions.rotary_dim") or 0.125))
    if part < 2 or part % 2:
        raise r.wrong("qk_rope_head_dim", part, "an even number of channels")
    r.use("partial_rotary_factor")
    nested = any(isinstance(v, dict) for v in (r.maybe_mapping("rope_parameters") or {}).values())
    if nested:
        name = "compress" if compressed else "main"
        return rope.rotary(r, size, layer_type=name, rotary_dim=part, interleaved=True, leading=False)
    found = rope.rotary(r, size, rotary_dim=part, interleaved=True, leading=False)
    if not compressed:
        return dataclasses.replace(found, scaling=None)
    scaling: Scaling | None = found.scaling
    if scaling is not None and scaling.kind == "yarn" and scaling.attention_factor is None:
        scaling = dataclasses.replace(scaling, attention_factor=1.0)
    base = r.decimal("compress_rope_theta", "attention.positions.base", minimum=1.0)
    return dataclasses.replace(found, base=base, scaling=scaling)


def experts(r: Reader, family: Family, *, by_hash: bool) -> MoE:
    """The experts of one kind of layer; the shared one is as wide as an expert and is not clamped."""
    count, top_k = r.integer("num_experts", "moe.experts"), r.integer("num_experts_per_tok", "moe.top_k")
    if top_k > count:
        raise r.wrong("num_experts_per_tok", top_k, f"at most the {count} experts")
    size = r.integer("moe_intermediate_size", "moe.size", maximum=common.MAX_WIDTH)
    act = common.activation(r, family, "moe.activation")
    score = r.maybe_text("scoring_func", "moe.router.score")
    if score not in SCORES:
        raise r.wrong("scoring_func", score, "one of " + ", ".join(SCORES))
    r.use("num_shared_experts", "n_shared_experts", "norm_topk_prob", "topk_method", "mlp_bias", "attention_bias")
    r.known("moe.router.normalize", "moe.router.correction_bias", "moe.shared")
    return MoE(
        experts=count,
        top_k=top_k,
        size=size,
        activation=act,
        router=Router(
            score=score,
            normalize=True,
            scale=r.decimal("routed_scaling_factor", "moe.router.scale"),
            correction_bias=not by_hash,
            hash=by_hash,
        ),
        clamp=moe.swiglu_clamp(r, gpt_oss=False),
        shared=MLP(size, act),
    )
