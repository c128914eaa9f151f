"""Attention in the three forms of a step, and the write of keys and values into the paged cache.

All three share one piece of mathematics, :func:`_attend`; they differ in where keys and values come from, which is what
decides the kernel on a device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.functional.operation import YES, Support, no, operation


def _attend(
    q_BQND: Tensor,
    k_BSKD: Tensor,
    v_BSKE: Tensor,
    mask_BQS: Tensor,
    scale: float,
    softcap: float | None,
    sinks_N: Tensor | None,
    bias_BNQS: Tensor | None,
) -> Tensor:
    """Softmax attention with grouped queries, scores and softmax in float32; [B, Q, N, E]."""
    b, q, n, _ = q_BQND.shape
    kv_heads = k_BSKD.shape[2]
    grouped = q_BQND.unflatten(2, (kv_heads, n // kv_heads)).float()
    scores = torch.einsum("bqkgd,bskd->bkgqs", grouped, k_BSKD.float()) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias_BNQS is not None:
        scores = scores + bias_BNQS.unflatten(1, (kv_heads, -1))
    scores = scores.masked_fill(~mask_BQS[:, None, None], float("-inf"))
    if sinks_N is not None:
        sink = sinks_N.float().view(1, kv_heads, -1, 1, 1).expand(b, -1, -1, q, 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    out = torch.einsum("bkgqs,bske->bqkge", weights, v_BSKE.float())
    return out.flatten(2, 3).to(q_BQND.dtype)


def _gather(
    pages: Tensor, blocks_BM: Tensor, kv_heads: int, head_size: int, latent_size: int | None
) -> tuple[Tensor, Tensor]:
    """Keys [B, S, K, D] and values [B, S, K, E] of the blocks, as views of one gathered buffer."""
    rows, blocks = blocks_BM.shape
    _, block_size, width = pages.shape
    both = torch.index_select(pages, 0, blocks_BM.reshape(-1)).view(rows, blocks * block_size, width)
    keys = kv_heads * head_size
    k = both[..., :keys].unflatten(-1, (kv_heads, head_size))
    if latent_size is not None:
        return k, k[..., :latent_size]
    v = both[..., keys:].unflatten(-1, (kv_heads, (width - keys) // kv_heads))
    return k, v


def _sdpa(q_BQND: Tensor, k_BSKD: Tensor, v_BSKE: Tensor, mask_BQS: Tensor, scale: float) -> Tensor:
    """torch's fused attention; the queries of one KV head are laid side by side, so that no key is repeated."""
    b, q, n, d = q_BQND.shape
    kv_heads = k_BSKD.shape[2]
    k, v = k_BSKD.transpose(1, 2), v_BSKE.transpose(1, 2)
    if q == 1:
        grouped = q_BQND.reshape(b, kv_heads, n // kv_heads, d)
        out = torch.nn.functional.scaled_dot_product_attention(grouped, k, v, attn_mask=mask_BQS[:, None], scale=scale)
        return out.reshape(b, 1, n, -1)
    out = torch.nn.functional.scaled_dot_product_attention(
        q_BQND.transpose(1, 2), k, v, attn_mask=mask_BQS[:, None], scale=scale, enable_gqa=n != kv_heads
    )
    return out.transpose(1, 2)


@operation
def flash_attention(
    q_BQND: Tensor,
    k_BSKD: Tensor,
    v_BSKE: Tensor,
    mask_BQS: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    """Attention over dense keys and values (PREFILL: a step's own tokens).

    Args:
        q_BQND: [B, Q, N, D].
        k_BSKD, v_BSKE: [B, S, K, D] and [B, S, K, E]; K divides N.
        mask_BQS: bool [B, Q, S], True where a query may see a key; every row has one True at least.
        scale: factor on the scores.
        softcap: scores become ``softcap * tanh(score / softcap)`` before the mask.
        sinks_N: [N], one extra logit a head that takes weight and gives nothing (gpt-oss).
        bias_BNQS: float32 [B, N, Q, S], added to the scores after the soft cap (ALiBi); of each row's visible
            keys one has a finite bias at least.
        causal: no query sees a key after its own place, whatever the mask says: key j only where ``j <= i + S - Q``. A
            kernel leaves those keys out.
        window: a promise of the caller that the mask shows no query a key before its own window: key j only where
            ``j > i + S - Q - window``. In a pack it holds for every sequence, whose tokens are side by side. A kernel
            may leave those keys out; the mask still decides.

    Returns:
        [B, Q, N, E] in q's dtype.
    """
    if causal:
        mask_BQS = _up_to_own(mask_BQS)
    return _attend(q_BQND, k_BSKD, v_BSKE, mask_BQS, scale, softcap, sinks_N, bias_BNQS)


def _up_to_own(mask_BQS: Tensor) -> Tensor:
    """The mask without keys after a query's own place."""
    queries, keys = mask_BQS.shape[-2:]
    return mask_BQS.tril(keys - queries)


@operation
def segmented_attention(
    q_BQND: Tensor,
    pages: Tensor,
    blocks_BM: Tensor,
    mask_BQS: Tensor,
    *,
    kv_heads: int,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    latent_size: int | None = None,
    window: int | None = None,
) -> Tensor:
    """Attention of several queries a row over the paged cache (EXTEND: a chunk after cached tokens).

    Args:
        q_BQND: [B, Q, N, D].
        pages: [blocks, block_size, K * (D + E)], or K * D with a latent cache; the layer's cache, this step's keys and
            values already written.
        blocks_BM: int64 [B, M], the block table.
        mask_BQS: bool [B, Q, M * block_size].
        kv_heads: K.
        scale, softcap, sinks_N, bias_BNQS: as in :func:`flash_attention`.
        latent_size: the cache holds keys alone, and the first so many channels of each are its value (latent
            attention).
        window: a promise of the caller that the first query's window of so many keys begins in the table's first
            block: the mask shows query i keys i to ``i + window + block_size - 2`` at most. A kernel may leave the
            others out; the mask still decides.

    Returns:
        [B, Q, N, E].
    """
    k, v = _gather(pages, blocks_BM, kv_heads, q_BQND.shape[-1], latent_size)
    return _attend(q_BQND, k, v, mask_BQS, scale, softcap, sinks_N, bias_BNQS)


@operation
def attention_decode(
    q_BQND: Tensor,
    pages: Tensor,
    blocks_BM: Tensor,
    mask_BQS: Tensor,
    *,
    kv_heads: int,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    latent_size: int | None = None,
    window: int | None = None,
) -> Tensor:
    """Attention of few queries a row over the paged cache (DECODE: Q = 1).

    Arguments and result as in :func:`segmented_attention`.
    """
    k, v = _gather(pages, blocks_BM, kv_heads, q_BQND.shape[-1], latent_size)
    return _attend(q_BQND, k, v, mask_BQS, scale, softcap, sinks_N, bias_BNQS)


@operation
def kv_write(pages: Tensor, k_TKD: Tensor, v_TKE: Tensor | None, slots_T: Tensor) -> None:
    """Write each token's key and value into its slot of the cache, in place.

    Args:
        pages: [blocks, block_size, K * (D + E)].
        k_TKD, v_TKE: [T, K, D] and [T, K, E]; a latent cache (E = 0) has no values.
        slots_T: int64 [T], ``block * block_size + offset``. Padded tokens all name a slot of the null block; which of
            them stays there is of no account, since no mask shows it.
    """
    block_size = pages.shape[1]
    rows = _rows(k_TKD, v_TKE)
    pages[slots_T // block_size, slots_T % block_size] = rows.to(pages.dtype)


def _rows(k_TKD: Tensor, v_TKE: Tensor | None) -> Tensor:
    return k_TKD.flatten(1) if v_TKE is None else torch.cat((k_TKD.flatten(1), v_TKE.flatten(1)), dim=-1)


def _plain(softcap: float | None, sinks_N: Tensor | None, bias_BNQS: Tensor | None) -> Support:
    if softcap is not None:
        return no("softcap", softcap, "None")
    if sinks_N is not None:
        return no("sinks_N", "a tensor", "None")
    if bias_BNQS is not None:
        return no("bias_BNQS", "a tensor", "None")
    return YES


def _dense_is_plain(
    q_BQND: Tensor,
    k_BSKD: Tensor,
    v_BSKE: Tensor,
    mask_BQS: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Support:
    return _plain(softcap, sinks_N, bias_BNQS)


def _paged_is_plain(
    q_BQND: Tensor,
    pages: Tensor,
    blocks_BM: Tensor,
    mask_BQS: Tensor,
    *,
    kv_heads: int,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    latent_size: int | None = None,
    window: int | None = None,
) -> Support:
    return _plain(softcap, sinks_N, bias_BNQS)


@flash_attention.kernel("torch.sdpa", target="cpu", supports=_dense_is_plain)
def _flash_sdpa(
    q_BQND: Tensor,
    k_BSKD: Tensor,
    v_BSKE: Tensor,
    mask_BQS: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
) -> Tensor:
    return _sdpa(q_BQND, k_BSKD, v_BSKE, _up_to_own(mask_BQS) if causal else mask_BQS, scale)


@segmented_attention.kernel("torch.sdpa", target="cpu", supports=_paged_is_plain)
@attention_decode.kernel("torch.sdpa", target="cpu", supports=_paged_is_plain)
def _paged_sdpa(
    q_BQND: Tensor,
    pages: Tensor,
    blocks_BM: Tensor,
    mask_BQS: Tensor,
    *,
    kv_heads: int,
    scale: float,
    softcap: float | None = None,
    sinks_N: Tensor | None = None,
    bias_BNQS: Tensor | None = None,
    latent_size: int | None = None,
    window: int | None = None,
) -> Tensor:
    k, v = _gather(pages, blocks_BM, kv_heads, q_BQND.shape[-1], latent_size)
    return _sdpa(q_BQND, k, v, mask_BQS, scale)


def _contiguous_pages(pages: Tensor, k_TKD: Tensor, v_TKE: Tensor | None, slots_T: Tensor) -> Support:
    if not pages.is_contiguous():
        return no("pages.stride()", pages.stride(), "contiguous pages")
    return YES


@kv_write.kernel("torch.index_copy", target="cpu", supports=_contiguous_pages)
def _write_rows(pages: Tensor, k_TKD: Tensor, v_TKE: Tensor | None, slots_T: Tensor) -> None:
    rows = _rows(k_TKD, v_TKE)
    pages.view(-1, pages.shape[-1]).index_copy_(0, slots_T, rows.to(pages.dtype))
