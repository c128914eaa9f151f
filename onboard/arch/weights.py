"""Sizes of weights, block by block. Every function gives (all, used for one token)."""

from __future__ import annotations

from onboard.arch.blocks import MLP, Attention, Layer, MoE, Norm, State
from onboard.arch.spec import ArchSpec

XIELU = 2


def tables(arch: ArchSpec) -> int:
    """Embedding tables: tokens, learned positions, per-layer inputs."""
    e = arch.embedding
    total = (e.vocab + e.extra_rows) * e.size
    if e.positions is not None and e.positions.learned_size:
        total += e.positions.learned_size * arch.hidden
    if arch.per_layer_input is not None:
        total += arch.per_layer_input.vocab * arch.per_layer_input.size * arch.layers
    return total


def around(arch: ArchSpec) -> int:
    """What is outside the layers and is neither a table nor the head's matrix."""
    e, h = arch.embedding, arch.hidden
    total = norm(e.norm, h) + norm(arch.final_norm, h)
    if e.project:
        total += 2 * e.size * h
    if arch.head.bias:
        total += e.vocab
    if arch.per_layer_input is not None:
        p = arch.per_layer_input
        total += h * p.size * arch.layers + norm(p.norm, p.size)
    if arch.hyper_connections is not None:
        streams = arch.hyper_connections.streams
        total += streams * streams * h + streams + 1
    return total + sum(part.params for part in arch.beyond)


def norm(n: Norm | None, width: int) -> int:
    """Weight and bias of a norm over ``width``."""
    return 0 if n is None else width * (int(n.weight) + int(n.bias))


def layer(one: Layer, arch: ArchSpec) -> tuple[int, int]:
    """One layer."""
    h = arch.hidden
    n = one.norms
    places = (n.pre_mixer, n.post_mixer, n.pre_mlp, n.post_mlp, n.post_dense, n.pre_moe, n.post_moe)
    total = sum(norm(x, h) for x in places) + state(one.state, h)
    block = attention(one.attention, h) + mlp(one.mlp, h)
    again = 0 if one.weights_of is None else block + norm(n.pre_mlp, h)
    total += block
    if one.per_layer_input and arch.per_layer_input is not None:
        total += 2 * h * arch.per_layer_input.size + norm(arch.per_layer_input.norm, h)
    if arch.hyper_connections is not None:
        streams = arch.hyper_connections.streams
        mixed = (2 + streams) * streams
        total += 2 * (mixed * streams * h + mixed + 3)
    whole, used = moe(one.moe, h)
    return total + whole - again, total + used


def mlp(m: MLP | None, h: int) -> int:
    """A dense MLP on width ``h``."""
    if m is None:
        return 0
    ups = 2 if m.gated else 1
    total = (ups + 1) * h * m.size + ups * m.size * m.up_bias + h * m.down_bias
    return total + norm(m.down_norm, m.size) + (XIELU if m.activation == "xielu" else 0)


def moe(m: MoE | None, h: int) -> tuple[int, int]:
    """Router, experts, shared expert and what is around them."""
    if m is None:
        return 0, 0
    inner = m.latent_size or h
    expert = mlp(MLP(m.size, m.activation, m.gated, m.up_bias, m.down_bias), inner)
    fixed = h * m.experts + m.experts * (m.router.bias + m.router.expert_scale) + h * m.router.input_scale
    fixed += norm(m.router.input_norm, h) + mlp(m.shared, h) + h * m.shared_gate
    if m.latent_size is not None:
        fixed += 2 * h * inner + (inner + h) * m.latent_bias
    return fixed + m.experts * expert, fixed + m.top_k * expert


def attention(a: Attention | None, h: int) -> int:
    """An attention block, its norms, sinks, indexer and compressor."""
    if a is None:
        return 0
    if a.latent is not None:
        return _latent(a, h)
    q_width, o_width = a.heads * a.head_size_k, a.heads * a.head_size_v
    k_width, v_width = a.kv_heads * a.head_size_k, a.kv_heads * a.head_size_v
    read = a.input_size or h
    total = _query(a, read, q_width, _gate(a))
    if a.shared_kv is None:
        total += read * k_width + k_width * a.k_bias
        if not a.k_eq_v:
            total += read * v_width + v_width * a.v_bias
        total += norm(a.v_norm, a.head_size_v)
    total += _output(a, h, o_width) + _qk_norm(a, q_width, k_width) + norm(a.out_norm, o_width)
    total += a.heads * a.sinks
    return total + _compressor(a, h) + (0 if a.compressor else _indexer(a, h, a.q_rank or h))


def _gate(a: Attention) -> int:
    return {"channel": a.heads * a.head_size_v, "head": a.heads}.get(a.output_gate or "", 0)


def _query(a: Attention, h: int, width: int, gate: int) -> int:
    own = h * gate if a.gate_from == "own" else 0
    width += 0 if own else gate
    if a.q_rank is not None:
        return h * a.q_rank + a.q_rank + a.q_rank * width + own
    return h * width + width * a.q_bias + own


def _output(a: Attention, h: int, width: int) -> int:
    if a.o_groups is not None and a.o_rank is not None:
        return width // a.o_groups * a.o_groups * a.o_rank + a.o_groups * a.o_rank * h
    return width * h + h * a.o_bias


def _qk_norm(a: Attention, q_width: int, k_width: int) -> int:
    if a.qk_norm is None:
        return 0
    q, k = (a.head_size_k, a.head_size_k) if a.qk_norm.width == "head" else (q_width, k_width)
    return norm(a.qk_norm.query_norm or a.qk_norm.norm, q) + (norm(a.qk_norm.norm, k) if a.shared_kv is None else 0)


def _latent(a: Attention, h: int) -> int:
    m = a.latent
    assert m is not None
    q_width = a.heads * a.head_size_k
    if m.q_rank is None:
        total = h * q_width
    else:
        total = h * m.q_rank + m.q_rank * a.q_bias + norm(m.norm, m.q_rank) + m.q_rank * q_width
    down = m.kv_rank + m.rope_size
    total += h * down + down * a.k_bias + norm(m.norm, m.kv_rank)
    total += m.kv_rank * a.heads * (m.nope_size + a.head_size_v)
    total += a.heads * a.head_size_v * h + h * a.o_bias + h * _gate(a) + a.heads * a.sinks
    return total + _indexer(a, h, m.q_rank or h)


def _indexer(a: Attention, h: int, query_from: int) -> int:
    """Queries from the low-rank query, one key head with a LayerNorm, and a weight for each head."""
    i = a.indexer
    if i is None or i.shared:
        return 0
    return query_from * i.heads * i.head_size + h * i.head_size + 2 * i.head_size + h * i.heads


def _compressor(a: Attention, h: int) -> int:
    """KV and gate projections, a bias for each position of a window, a norm; the same again for the indexer's keys."""
    c = a.compressor
    if c is None:
        return 0
    series = 2 if c.overlap else 1

    def branch(size: int) -> int:
        return 2 * h * series * size + c.rate * series * size + size

    total = branch(a.head_size_k)
    if a.indexer is not None and not a.indexer.shared:
        i = a.indexer
        total += branch(i.head_size) + (a.q_rank or h) * i.heads * i.head_size + h * i.heads
    return total


def state(s: State | None, h: int) -> int:
    """A state mixer."""
    if s is None:
        return 0
    value = s.heads * s.head_size
    conv = (s.conv_channels or 0) * ((s.conv_kernel or 0) + s.conv_bias)
    if s.kind == "mamba1":
        rank = s.dt_rank or 0
        total = h * 2 * value + value * (rank + 2 * s.state_size) + rank * value + value
        total += value * s.state_size + value + value * h + (2 * value + h) * s.proj_bias
        total += norm(s.inner_norm, rank + 2 * s.state_size)
    elif s.kind == "mamba2":
        wide = value + (s.conv_channels or 0) + s.heads
        total = h * wide + 3 * s.heads + norm(s.norm, value) + value * h + (wide + h) * s.proj_bias
    elif s.kind == "gated_delta_net":
        key = (s.key_heads or s.heads) * s.state_size
        total = h * (2 * key + 2 * value + 2 * s.heads) + 2 * s.heads + norm(s.norm, s.head_size) + value * h
    elif s.kind == "kda":
        total = 4 * h * value + 2 * (h * s.head_size + s.head_size * value) + value + s.heads + h * s.heads
        total += norm(s.norm, s.head_size)
    elif s.kind == "lightning":
        total = 5 * h * value + norm(s.norm, value)
    elif s.kind == "rg_lru":
        total = 3 * h * value + 2 * value + h + value + 2 * (value * s.head_size + value)
    elif s.kind == "wkv":
        total = 4 * h * value + 2 * value + 3 * h
    elif s.kind == "short_conv":
        total = 4 * h * h + 4 * h * s.proj_bias
    else:
        total = _mlstm(s, h, value)
    return total + conv


def _mlstm(s: State, h: int, value: int) -> int:
    key = s.heads * s.state_size
    gates = 2 * (h * s.heads + s.heads)
    bias = (2 * key + 2 * value + h) * s.proj_bias
    return h * (2 * key + 2 * value) + gates + norm(s.norm, value) + value * h + bias
