"""Faults in attention, its cache and the steps that feed it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import vllm_neuron.functional as NF
from tests.vllm_neuron.accuracy.faults.fault import Fault, Where
from tests.vllm_neuron.accuracy.faults.plant import at, kernels, on_step, on_views, rewritten, setting, wrapped
from vllm_neuron.step import KVView, Phase, Step

ATTENTION = ("flash_attention", "segmented_attention", "attention_decode")


def _everywhere(run: Any) -> AbstractContextManager[None]:
    return kernels(**dict.fromkeys(ATTENTION, run))


def _swap_kv(weight: Tensor) -> Tensor:
    """Rows 64..96 are keys, 96..128 values."""
    return torch.cat((weight[:64], weight[96:], weight[64:96]))


def _tiled_heads(reference: Any, q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Query head h reads key head h % K in place of h // (N / K)."""
    heads, groups = q.shape[2], 2
    order = torch.arange(heads).view(groups, -1).t().reshape(-1)
    return reference(q[:, :, order], *args, **kwargs)[:, :, torch.argsort(order)]


def _bf16_sums(reference: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, **kwargs: Any) -> Tensor:
    """Softmax whose exponentials and running sum are kept in the activations' dtype."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
    scores = (torch.einsum("bqnd,bsnd->bnqs", q, k) * scale).masked_fill(~mask[:, None], float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    total = torch.zeros_like(weights[..., :1])
    for s in range(weights.shape[-1]):
        total = total + weights[..., s : s + 1]
    return torch.einsum("bnqs,bsnd->bqnd", weights / total, v)


def _positions_in_dtype(module: Any, forward: Any, positions: Tensor, x: Tensor) -> Tensor:
    """Positions pass through the activations' dtype, which is exact in float32 and up to 256 in bfloat16."""
    return forward(positions.to(x.dtype).to(torch.int64), x)


def _window(by: int) -> Any:
    def plant(model: Any) -> None:
        for block in model.attentions():
            if block.asks.sliding_window_size is not None:
                block.asks = replace(block.asks, sliding_window_size=block.asks.sliding_window_size + by)

    return plant


def _other_rotary(model: Any) -> None:
    model.layers[0].attn.rotary = model.layers[1].attn.rotary


def _sees_next(step: Step, view: KVView) -> KVView:
    """Each query sees the key after itself too."""
    mask = view.mask_BQS.clone()
    mask[..., 1:] |= view.mask_BQS[..., :-1]
    return replace(view, mask_BQS=mask, causal=False)


def _sees_padding(step: Step, view: KVView) -> KVView:
    """Padded keys are seen by the queries of the step."""
    mask = view.mask_BQS.clone()
    never = ~view.mask_BQS.any(dim=1, keepdim=True)
    return replace(view, mask_BQS=mask | never, causal=False)


def _sees_mates(step: Step, view: KVView) -> KVView:
    """Packed requests see what comes before them in the step."""
    size = view.mask_BQS.shape[-1]
    real = view.mask_BQS.any(dim=1, keepdim=True)
    return replace(view, mask_BQS=torch.ones(1, size, size, dtype=torch.bool).tril() & real, window=None)


def _stale_block(step: Step, view: KVView) -> KVView:
    """The second block of each table is one that was freed."""
    assert view.blocks_BM is not None
    blocks = view.blocks_BM.clone()
    blocks[:, 1] = 0
    return replace(view, blocks_BM=blocks)


def _first_rows_blocks(step: Step, view: KVView) -> KVView:
    """Every row of a batch reads the first row's cache."""
    assert view.blocks_BM is not None
    return replace(view, blocks_BM=view.blocks_BM[:1].expand_as(view.blocks_BM))


def _shorter_window(step: Step, view: KVView) -> KVView:
    """A windowed layer's oldest key is dropped, while decoding alone."""
    mask = view.mask_BQS.clone()
    long = mask.sum(-1) == 40
    oldest = mask.int().argmax(-1)
    mask[long, oldest[long]] = False
    return replace(view, mask_BQS=mask)


def _next_slot(step: Step, view: KVView) -> KVView:
    return replace(view, slots_T=view.slots_T + 1)


def _restarted(step: Step) -> Step:
    return replace(step, positions_T=step.positions_T * 0) if step.phase is Phase.DECODE else step


def _chunk_late(step: Step) -> Step:
    return replace(step, positions_T=step.positions_T + 1) if step.phase is Phase.EXTEND else step


def _clamped(step: Step) -> Step:
    return replace(step, positions_T=step.positions_T.clamp(max=255))


def attention_faults() -> Iterator[Fault]:
    """The rows of the table, each with the place where it must be found."""
    layer0, layer1 = "layers.0.attn", "layers.1.attn"
    yield Fault("dropped qkv bias", "llama", Where(1, "attn", "qkv bias"), at(layer1, _no_bias))
    yield Fault("keys and values swapped", "llama", Where(1, "attn", "qkv"), rewritten(f"{layer1}.qkv", _swap_kv))
    yield Fault("wrong scale", "llama", Where(2, "attn", "scale"), setting("layers.2.attn", scale=0.26))
    yield Fault(
        "heads tiled for grouped", "llama", Where(0, "attn", "head mapping"), inside=lambda: _everywhere(_tiled_heads)
    )
    interleaved = at(layer0, lambda attn: setattr(attn.rotary, "forward", _neighbours(attn.rotary)))
    yield Fault("rotary of neighbours for halves", "llama", Where(0, "attn", "rotary"), interleaved)
    yield Fault("positions end at 255", "llama", Where(0, "attn", "rotary", position=256), on_step(_clamped))
    yield Fault(
        "positions in bf16",
        "llama",
        Where(0, "attn", "rotary", position=257, dtype="bfloat16"),
        wrapped("layers.0.attn.rotary", _positions_in_dtype),
    )
    yield Fault(
        "softmax summed in bf16",
        "llama",
        Where(0, "attn", "softmax", dtype="bfloat16"),
        inside=lambda: kernels(flash_attention=_bf16_sums),
    )
    yield Fault("mask off by one", "llama", Where(0, "attn", "mask"), on_views(_sees_next, Phase.PREFILL))
    yield Fault(
        "padded rows leak", "llama", Where(0, "attn", "mask", "padded prefill"), on_views(_sees_padding, Phase.PREFILL)
    )
    yield Fault(
        "packed requests leak", "llama", Where(0, "attn", "mask", "batch"), on_views(_sees_mates, Phase.PREFILL)
    )
    yield Fault("slot off by one", "llama", Where(0, "attn", "cache write", "decode"), on_views(_next_slot))
    yield Fault(
        "stale cache block", "llama", Where(0, "attn", "cache read", "decode"), on_views(_stale_block, Phase.DECODE)
    )
    yield Fault(
        "a batch reads its first row's cache",
        "llama",
        Where(0, "attn", "cache read", "batch"),
        on_views(_first_rows_blocks, Phase.DECODE),
    )
    yield Fault("positions restart at decode", "llama", Where(0, "attn", "rotary", "decode"), on_step(_restarted))
    yield Fault("chunk one position late", "llama", Where(0, "attn", "rotary", "chunked prefill"), on_step(_chunk_late))
    yield Fault("window one longer", "gemma3", Where(0, "attn", "mask", position=40), _window(1))
    yield Fault("window one shorter", "gemma3", Where(0, "attn", "mask", position=39), _window(-1))
    shorter = Where(0, "attn", "mask", "decode")
    yield Fault("window one shorter in decode", "gpt_oss", shorter, on_views(_shorter_window, Phase.DECODE))
    yield Fault("rotary of the other layer type", "gemma3", Where(0, "attn", "rotary"), _other_rotary)
    yield Fault("no q_norm", "gemma3", Where(1, "attn", "q_norm"), at(layer1, _no_q_norm))
    plain = at(layer1, lambda attn: setattr(attn.k_norm, "norm", replace(attn.k_norm.norm, plus_one=False)))
    yield Fault("k_norm without 1 + w", "gemma3", Where(1, "attn", "k_norm"), plain)
    yield Fault("soft cap of the scores dropped", "gemma2", Where(1, "attn", "softcap"), setting(layer1, softcap=None))
    yield Fault("sinks ignored", "gpt_oss", Where(1, "attn", "sinks"), setting(layer1, sinks=None))
    yield Fault(
        "sinks of other heads", "gpt_oss", Where(1, "attn", "sinks"), rewritten(layer1, lambda s: s.flip(0), "sinks")
    )
    yield Fault(
        "wrong output projection", "llama", Where(2, "attn", "o"), rewritten("layers.2.attn.o", lambda w: w.t())
    )


def _no_bias(attn: Any) -> None:
    attn.qkv.bias = None


def _no_q_norm(attn: Any) -> None:
    """Neither queries nor keys are normed."""
    attn.q_norm = None


def _neighbours(rotary: Any) -> Any:
    """Half-style tables read as interleaved ones."""

    def forward(positions: Tensor, x: Tensor) -> Tensor:
        rows = rotary.table[positions]
        cos, sin = rows.chunk(2, dim=-1)
        width = cos.shape[-1] // 2
        pairs = torch.cat((cos[:, :width].repeat_interleave(2, -1), sin[:, width:].repeat_interleave(2, -1)), dim=-1)
        return NF.rotary(x, pairs, interleaved=True)

    return forward
