"""Attention on NKI: dense keys for PREFILL, the paged cache for EXTEND and DECODE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.attention import attention_decode, flash_attention, segmented_attention
from vllm_neuron.functional.on_nki.limits import PARTITIONS, first_no, grid, one_type, shape
from vllm_neuron.functional.operation import YES, Support, no
from vllm_neuron.nki.kernels.attention_decode import attention_decode_kernel
from vllm_neuron.nki.kernels.flash_attention import SECTION, flash_attention_kernel, segmented_attention_kernel
from vllm_neuron.nki.wrap import wrap_nki

# fp32 columns of a PSUM bank, which a query tile's result must fit.
MOST_VALUE_SIZE = 512
# Bytes a partition for keys and values of a section, their transposes included; for the rows of one tile in decode.
SECTION_BYTES = 120 * 1024
ROW_BYTES = 64 * 1024


def _dense_shape(q: Tensor, v: Tensor, **_: Any) -> tuple[tuple[int, ...], torch.dtype]:
    return (*q.shape[:3], v.shape[3]), q.dtype


def _paged_shape(q: Tensor, value_size: int, **_: Any) -> tuple[tuple[int, ...], torch.dtype]:
    return (*q.shape[:3], value_size), q.dtype


FLASH = wrap_nki(flash_attention_kernel, outputs=_dense_shape)
SEGMENTED = wrap_nki(segmented_attention_kernel, outputs=_paged_shape)
DECODE = wrap_nki(attention_decode_kernel, outputs=_paged_shape)


def _options(
    q_BQND: Tensor,
    mask_BQS: Tensor,
    keys: int,
    kv_heads: int,
    value_size: int,
    *,
    scale: float,
    softcap: float | None,
    sinks_N: Tensor | None,
    bias_BNQS: Tensor | None,
) -> Support:
    """What all forms ask of a call."""
    rows, queries, heads, _ = q_BQND.shape
    if q_BQND.shape[2] % kv_heads:
        return no("q_BQND.shape[2]", q_BQND.shape[2], f"a multiple of {kv_heads} KV heads")
    if scale <= 0:
        return no("scale", scale, "a factor above 0")
    if softcap is not None and softcap <= 0:
        return no("softcap", softcap, "None or a number above 0")
    if mask_BQS.dtype != torch.bool:
        return no("mask_BQS.dtype", mask_BQS.dtype, "bool")
    if not 1 <= value_size <= MOST_VALUE_SIZE:
        return no("value size", value_size, f"1 to {MOST_VALUE_SIZE}")
    return first_no(
        shape("mask_BQS", mask_BQS, (rows, queries, keys)),
        shape("sinks_N", sinks_N, (heads,)),
        shape("bias_BNQS", bias_BNQS, (rows, heads, queries, keys)),
    )


def _section_room(size: int, value_size: int, itemsize: int) -> Support:
    """Whether keys and values of one section fit in SBUF."""
    tiles = SECTION // PARTITIONS
    used = tiles * itemsize * (size + value_size + -(-size // PARTITIONS) * PARTITIONS)
    if used > SECTION_BYTES:
        most = SECTION_BYTES // (tiles * itemsize)
        return no("head size", f"{size} and {value_size}", f"twice the one and the other up to {most} together")
    return YES


def _takes_dense(
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
    queries, keys = q_BQND.shape[1], k_BSKD.shape[1]
    if causal and keys < queries:
        return no("k_BSKD.shape[1]", keys, f"a key for each of {queries} causal queries")
    if window is not None and window < 1:
        return no("window", window, "None or a number above 0")
    rows, _, _, size = q_BQND.shape
    kv_heads, value_size = v_BSKE.shape[2:]
    extras: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks_N": sinks_N, "bias_BNQS": bias_BNQS}
    return first_no(
        one_type("q_BQND", q_BQND, k_BSKD=k_BSKD, v_BSKE=v_BSKE),
        shape("k_BSKD", k_BSKD, (rows, keys, kv_heads, size)),
        shape("v_BSKE", v_BSKE, (rows, keys, kv_heads, value_size)),
        _options(q_BQND, mask_BQS, keys, kv_heads, value_size, **extras),
        _section_room(q_BQND.shape[3], v_BSKE.shape[3], q_BQND.dtype.itemsize),
    )


def _values(pages: Tensor, kv_heads: int, size: int, latent_size: int | None) -> tuple[int, int]:
    """Size of a value, and the column of the first in a row of the cache."""
    if latent_size is not None:
        return latent_size, 0
    return (pages.shape[2] - kv_heads * size) // kv_heads, kv_heads * size


def _takes_paged(
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
    if not pages.is_contiguous():
        return no("pages.stride()", pages.stride(), "contiguous pages")
    rows, queries, _, size = q_BQND.shape
    if window is not None and window < 1:
        return no("window", window, "None or a number above 0")
    if window is not None and blocks_BM.shape[1] * pages.shape[1] < queries:
        return no("keys in blocks_BM", blocks_BM.shape[1] * pages.shape[1], f"a key for each of {queries} queries")
    value_size, _ = _values(pages, kv_heads, size, latent_size)
    width = kv_heads * (size if latent_size is not None else size + value_size)
    if latent_size is not None and latent_size > size:
        return no("latent_size", latent_size, f"at most the head size, {size}")
    extras: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks_N": sinks_N, "bias_BNQS": bias_BNQS}
    return first_no(
        one_type("q_BQND", q_BQND, pages=pages),
        _options(q_BQND, mask_BQS, blocks_BM.shape[1] * pages.shape[1], kv_heads, value_size, **extras),
        shape("blocks_BM", blocks_BM, (rows, blocks_BM.shape[1])),
        shape("pages", pages, (*pages.shape[:2], width)),
        _section_room(q_BQND.shape[3], value_size, q_BQND.dtype.itemsize),
    )


def _takes_decode(
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
    row = pages.shape[2] * pages.dtype.itemsize
    if row > ROW_BYTES:
        return no("bytes of a token in pages", row, f"at most {ROW_BYTES}")
    columns = q_BQND.shape[1] * q_BQND.shape[2]
    if columns > PARTITIONS:
        return no("queries times heads", columns, f"at most {PARTITIONS}")
    return _takes_paged(
        q_BQND,
        pages,
        blocks_BM,
        mask_BQS,
        kv_heads=kv_heads,
        scale=scale,
        softcap=softcap,
        sinks_N=sinks_N,
        bias_BNQS=bias_BNQS,
        latent_size=latent_size,
        window=window,
    )


def _bytes(mask_BQS: Tensor) -> Tensor:
    return mask_BQS.contiguous().view(torch.uint8)


def _fp32(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float().contiguous()


@flash_attention.kernel("nki.flash_attention", target="nki", supports=_takes_dense)
def _flash(
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
    return FLASH[grid()](
        q_BQND.contiguous(),
        k_BSKD.contiguous(),
        v_BSKE.contiguous(),
        _bytes(mask_BQS),
        scale,
        softcap=softcap,
        sinks=_fp32(None if sinks_N is None else sinks_N[None]),
        bias=_fp32(bias_BNQS),
        causal=causal,
        window=window,
    )


def _paged(
    kernel: Any,
    q_BQND: Tensor,
    pages: Tensor,
    blocks_BM: Tensor,
    mask_BQS: Tensor,
    kv_heads: int,
    scale: float,
    softcap: float | None,
    sinks_N: Tensor | None,
    bias_BNQS: Tensor | None,
    latent_size: int | None,
    **more: int | None,
) -> Tensor:
    block_size = pages.shape[1]
    offsets = torch.arange(block_size, device=blocks_BM.device)
    slots_BS = (blocks_BM[:, :, None] * block_size + offsets).flatten(1).to(torch.int32)
    value_size, value_start = _values(pages, kv_heads, q_BQND.shape[3], latent_size)
    out: Tensor = kernel[grid()](
        q_BQND.contiguous(),
        pages.flatten(0, 1),
        slots_BS,
        _bytes(mask_BQS),
        scale,
        kv_heads,
        value_size,
        value_start,
        block_size & -block_size,
        softcap=softcap,
        sinks=_fp32(None if sinks_N is None else sinks_N[None]),
        bias=_fp32(bias_BNQS),
        **more,
    )
    return out


@segmented_attention.kernel("nki.segmented_attention", target="nki", supports=_takes_paged)
def _segmented(
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
    return _paged(
        SEGMENTED, q_BQND, pages, blocks_BM, mask_BQS, kv_heads, scale, softcap, sinks_N, bias_BNQS, latent_size,
        window=window, block_size=pages.shape[1],
    )  # fmt: skip


@attention_decode.kernel("nki.attention_decode", target="nki", supports=_takes_decode)
def _decode(
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
    return _paged(DECODE, q_BQND, pages, blocks_BM, mask_BQS, kv_heads, scale, softcap, sinks_N, bias_BNQS, latent_size)


attention_decode.kernel("nki.segmented_attention", target="nki", supports=_takes_paged)(_segmented)
