"""Numbers that follow from an :class:`ArchSpec` alone, exactly: parameters, cache and state bytes, FLOPs.

Parameters are what the reference trains: correction biases of routers, stored scalars of layers and hash tables are
buffers and are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from onboard.arch import weights
from onboard.arch.blocks import Attention, Layer, State
from onboard.arch.spec import ArchSpec
from vllm_neuron.errors import ConfigError, nearest

BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3": 8, "float8_e5m2": 8, "fp8": 8, "int8": 8,
        "fp4": 4}  # fmt: skip
STATE_BYTES = 4


@dataclass(frozen=True)
class Params:
    """Parameters of the language model: all, used for one token, in embedding tables (a tied head counts once)."""

    total: int
    active: int
    embedding: int


def params(arch: ArchSpec) -> Params:
    """Exact parameter counts of the language model.

    ``active`` takes the chosen experts for all, and embedding tables as nothing, since their rows are looked up and not
    multiplied (a tied table is the head, and counts).
    """
    tables = weights.tables(arch)
    body = weights.around(arch)
    used = weights.around(arch)
    for kind, layer in enumerate(arch.kinds):
        count = arch.count_of(kind)
        whole, chosen = weights.layer(layer, arch)
        body += count * whole
        used += count * chosen
    head = 0 if arch.head.tied else arch.embedding.vocab * arch.embedding.size
    head_used = arch.embedding.vocab * arch.embedding.size
    return Params(total=tables + body + head, active=used + head_used, embedding=tables)


def params_towers(arch: ArchSpec) -> int | None:
    """Parameters of all towers; 0 without towers; None as soon as one is unknown."""
    known = [tower.params for tower in arch.towers if tower.params is not None]
    return sum(known) if len(known) == len(arch.towers) else None


def _width(dtype: str) -> Fraction:
    """Bytes of one value.

    Raises:
        ConfigError: a dtype that is not known.
    """
    if dtype not in BITS:
        raise ConfigError("dtype", dtype, "the name of a dtype", nearest(dtype, BITS))
    return Fraction(BITS[dtype], 8)


def _cache_values(a: Attention) -> Fraction:
    """Values that one token adds to the cache of one layer, the indexer's keys apart."""
    if a.shared_kv is not None:
        return Fraction(0)
    if a.latent is not None:
        return Fraction(a.latent.kv_rank + a.latent.rope_size)
    one = Fraction(a.kv_heads) * (a.head_size_k if a.single_cache else a.head_size_k + a.head_size_v)
    return one + (one / a.compressor.rate if a.compressor else 0)


def _indexer_values(a: Attention) -> Fraction:
    if a.indexer is None or a.indexer.shared:
        return Fraction(0)
    return Fraction(a.indexer.head_size, a.compressor.rate if a.compressor else 1)


def kv_bytes_per_token(arch: ArchSpec, dtype: str = "bfloat16") -> int:
    """Bytes that one more token adds to the cache of one sequence while every window is still filling (compressed
    entries by their share, rounded up at the end).

    Raises:
        ConfigError: a dtype that is not known.
    """
    return sum(kv_bytes_by_kind(arch, dtype).values())


def kv_bytes_by_kind(arch: ArchSpec, dtype: str = "bfloat16") -> dict[str, int]:
    """Bytes of one token in all layers of each kind: ``{"full": ..., "sliding": ...}``; ``indexer`` holds the keys of
    sparse indexers. Layers that read another layer's cache add nothing."""
    out: dict[str, Fraction] = {}
    for index, layer in enumerate(arch.kinds):
        if layer.attention is None:
            continue
        count = arch.count_of(index)
        parts = {layer.attention.kind: _cache_values(layer.attention), "indexer": _indexer_values(layer.attention)}
        for name, values in parts.items():
            if values or name != "indexer":
                out[name] = out.get(name, Fraction(0)) + count * values
    return {name: math.ceil(values * _width(dtype)) for name, values in out.items()}


def kept_tokens(layer: Layer, length: int) -> int:
    """Cache entries of one layer for a sequence of ``length`` tokens: a window or a chunk caps them, compressed
    entries are added, shared caches and states hold none."""
    a = layer.attention
    if a is None or a.shared_kv is not None:
        return 0
    cap = a.window or a.chunk
    kept = length if cap is None else min(length, cap)
    return kept + (length // a.compressor.rate if a.compressor else 0)


def layer_tokens(arch: ArchSpec, length: int) -> int:
    """Cache entries that one sequence of ``length`` tokens holds, over all layers."""
    return sum(arch.count_of(i) * kept_tokens(layer, length) for i, layer in enumerate(arch.kinds))


def kv_bytes(arch: ArchSpec, length: int, dtype: str = "bfloat16") -> int:
    """Cache bytes of one sequence of ``length`` tokens, without rounding to blocks."""
    total = Fraction(0)
    for index, layer in enumerate(arch.kinds):
        a = layer.attention
        if a is None or a.shared_kv is not None:
            continue
        values = _cache_values(a) / (1 + Fraction(1, a.compressor.rate)) if a.compressor else _cache_values(a)
        keys = math.floor(length * _indexer_values(a)) if a.compressor is None else _indexer_entries(a, length)
        total += arch.count_of(index) * (values * kept_tokens(layer, length) + keys)
    return math.ceil(total * _width(dtype))


def _indexer_entries(a: Attention, length: int) -> int:
    if a.indexer is None or a.indexer.shared or a.compressor is None:
        return 0
    return a.indexer.head_size * (length // a.compressor.rate)


def state_bytes(arch: ArchSpec, dtype: str = "bfloat16") -> int:
    """Bytes of state of one sequence, whatever its length: recurrent states in float32, the columns of convolutions
    (kernel - 1 of them) in ``dtype``."""
    total = Fraction(0)
    for index, layer in enumerate(arch.kinds):
        if layer.state is not None:
            total += arch.count_of(index) * _state(layer.state, _width(dtype))
    return math.ceil(total)


def _state(s: State, width: Fraction) -> Fraction:
    values = s.heads * s.head_size * s.state_size
    if s.kind == "mlstm":
        values += s.heads * (s.state_size + 1)
    columns = (s.conv_kernel - 1) * (s.conv_channels or 0) if s.conv_kernel else 0
    return values * STATE_BYTES + columns * width


def flops_per_token(arch: ArchSpec, context: int = 0) -> int:
    """Forward FLOPs of one token that sees ``context`` earlier tokens: two for each weight that is used, the products
    of attention with the entries it sees, and six for each value of a recurrent state (decay, update, read)."""
    total = 2 * params(arch).active
    for index, layer in enumerate(arch.kinds):
        total += arch.count_of(index) * _mixer_flops(layer, context)
    return total


def _mixer_flops(layer: Layer, context: int) -> int:
    if layer.state is not None:
        return 6 * layer.state.heads * layer.state.head_size * layer.state.state_size
    a = layer.attention
    if a is None:
        return 0
    cap = a.window or a.chunk
    seen = context + 1 if cap is None else min(context + 1, cap)
    extra = 0
    if a.compressor is not None:
        far = (context + 1) // a.compressor.rate
        seen += min(far, a.indexer.top_k) if a.indexer else far
        extra = 2 * a.indexer.heads * a.indexer.head_size * far if a.indexer else 0
    elif a.indexer is not None:
        extra = 0 if a.indexer.shared else 2 * a.indexer.heads * a.indexer.head_size * seen
        seen = min(seen, a.indexer.top_k)
    return 2 * a.heads * (a.head_size_k + a.head_size_v) * seen + extra
