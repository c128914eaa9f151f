"""Latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, and GLM-5 with its sparse indexer."""

from __future__ import annotations

import dataclasses
import math

from onboard.arch.blocks import Attention, Indexer, Latent, Layer, Norm, Positions
from onboard.arch.spec import ArchSpec
from onboard.facts import rope
from onboard.facts.families import common, dense, moe
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

LATENT_EPS = 1e-6
PATTERN = {"F": "full", "S": "shared"}


# Whether pairs are neighbours where the code does not ask the config.
FIXED_PAIRS = {"deepseek_v2": True, "deepseek_v32": True, "glm_moe_dsa": True, "axk2": True, "longcat_flash": True,
               "minicpm3": False, "hy_v4": False}  # fmt: skip
SPARSE = ("glm_moe_dsa", "deepseek_v32", "axk2", "hy_v4")


def build(r: Reader, family: Family) -> ArchSpec:
    """The architecture of an MLA decoder."""
    n = common.layer_count(r)
    if not r.flag("use_mla", "attention.kind", default=True):
        return dense.build(r, dataclasses.replace(family, build=None))
    sparse = dense.sparse_layers(r, family, n)
    indexers = indexer_types(r, family, n)

    def make(signature: tuple[bool, str | None]) -> Layer:
        experts, indexer = signature
        with r.layer("mla"):
            return Layer(
                attention=attention(r, family, indexer),
                mlp=None if experts else moe.mlp(r, family),
                moe=moe.moe(r, family, moe.STYLES[family.moe]) if experts and family.moe else None,
                norms=dense.norms(r, family),
                residual_scale=common.residual_scale(r, family),
            )

    kinds, index = common.distinct(list(zip(sparse, indexers, strict=True)), make)
    return common.finish(r, family, kinds, index)


def attention(r: Reader, family: Family, indexer: str | None, *, turned: bool = True) -> Attention:
    """The latent attention block; ``turned``: its rope part is turned, else it is plain channels."""
    n, k = common.heads(r)
    latent = Latent(
        q_rank=r.maybe_integer("q_lora_rank", "attention.latent.q_rank"),
        kv_rank=r.integer("kv_lora_rank", "attention.latent.kv_rank"),
        nope_size=r.integer("qk_nope_head_dim", "attention.latent.nope_size", minimum=0),
        rope_size=r.integer("qk_rope_head_dim", "attention.latent.rope_size"),
        norm=Norm("rms", LATENT_EPS),
    )
    r.use("head_dim", "qk_head_dim", "partial_rotary_factor")
    size = latent.nope_size + latent.rope_size
    r.derived("attention.head_size_k", "qk_nope_head_dim + qk_rope_head_dim")
    positions = _turned(r, family, size, latent.rope_size) if turned else Positions("none")
    bias = r.flag("attention_bias", "attention.o_bias")
    r.find("attention_bias", "attention.q_bias"), r.find("attention_bias", "attention.k_bias")
    r.known("attention.latent.norm.eps", "attention.positions.leading")
    return Attention(
        kind="mla",
        heads=n,
        kv_heads=k,
        head_size_k=size,
        head_size_v=r.integer("v_head_dim", "attention.head_size_v"),
        positions=positions,
        scale=scale(r, size, positions),
        q_bias=bias and latent.q_rank is not None,
        k_bias=bias,
        o_bias=bias,
        latent=latent,
        indexer=None if indexer is None else make_indexer(r, family, shared=indexer == "shared"),
    )


def _turned(r: Reader, family: Family, size: int, rope_size: int) -> Positions:
    at = "attention.positions.interleaved"
    interleaved = FIXED_PAIRS.get(family.model_type)
    if interleaved is None:
        interleaved = r.flag("rope_interleave", at, default=family.interleaved)
    r.known(at)
    r.use("rope_interleave")
    r.find("qk_rope_head_dim", "attention.positions.rotary_dim")
    return rope.rotary(r, size, rotary_dim=rope_size, interleaved=interleaved, leading=False)


def scale(r: Reader, size: int, positions: Positions) -> float:
    """1 / sqrt(D), times yarn's correction squared where ``mscale_all_dim`` is set."""
    r.derived("attention.scale", "1 / sqrt(head size), with yarn's mscale_all_dim")
    scaling = positions.scaling
    value: float = size**-0.5
    if scaling is not None and scaling.mscale_all_dim and scaling.factor and scaling.factor > 1:
        value *= (0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1.0) ** 2
    return value


def make_indexer(r: Reader, family: Family, *, shared: bool) -> Indexer:
    """The sparse indexer of one layer."""
    return Indexer(
        heads=r.integer("index_n_heads", "attention.indexer.heads"),
        head_size=r.integer("index_head_dim", "attention.indexer.head_size"),
        top_k=r.integer("index_topk", "attention.indexer.top_k"),
        shared=shared,
        interleaved=r.flag(
            "indexer_rope_interleave", "attention.indexer.interleaved", default=family.model_type == "glm_moe_dsa"
        ),
    )


def indexer_types(r: Reader, family: Family, n: int) -> list[str | None]:
    """full, shared or None for each layer: by list, by pattern, or by frequency and offset."""
    if family.model_type not in SPARSE:
        return [None] * n
    at = "attention.indexer.shared"
    if family.model_type in ("deepseek_v32", "axk2"):
        r.known(at)
        return ["full"] * n
    types = r.maybe_list("indexer_types", str, at)
    pattern = r.find("index_topk_pattern", None if types else at)[0]
    freq = r.maybe_integer("index_topk_freq", minimum=0) or 1
    offset = r.maybe_integer("index_skip_topk_offset", minimum=0)
    offset = 2 if offset is None else offset
    if types is None and isinstance(pattern, str):
        types = [PATTERN.get(c, c) for c in pattern]
    if types is None:
        return ["full" if max(i - offset + 1, 0) % freq == 0 else "shared" for i in range(n)]
    if len(types) != n or set(types) - {"full", "shared"}:
        raise r.wrong("indexer_types", types, f"full or shared for each of {n} layers")
    return list(types)
