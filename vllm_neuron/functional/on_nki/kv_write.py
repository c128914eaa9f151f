"""The write of keys and values into the paged cache, on NKI."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.attention import kv_write
from vllm_neuron.functional.on_nki.limits import TYPES, first_no, grid, one_type, shape
from vllm_neuron.functional.operation import Support, no
from vllm_neuron.nki.kernels.kv_write import kv_write_kernel
from vllm_neuron.nki.wrap import wrap_nki

# Two rows of float32 in flight, and their casts, in a partition.
MOST_WIDTH = 12 * 1024


def _pages(**_: Any) -> str:
    return "pages"


KV_WRITE = wrap_nki(kv_write_kernel, outputs=_pages, mutates=("pages",))


def _takes(pages: Tensor, k_TKD: Tensor, v_TKE: Tensor | None, slots_T: Tensor) -> Support:
    answer = one_type("k_TKD", k_TKD, v_TKE=v_TKE)
    if not answer.ok:
        return answer
    if pages.dtype not in TYPES:
        return no("pages.dtype", pages.dtype, "float32, bfloat16 or float16")
    if not pages.is_contiguous():
        return no("pages.stride()", pages.stride(), "contiguous pages")
    if slots_T.dtype not in (torch.int64, torch.int32):
        return no("slots_T.dtype", slots_T.dtype, "int64 or int32")
    if pages.shape[0] * pages.shape[1] > torch.iinfo(torch.int32).max:
        return no("pages.shape", tuple(pages.shape), "slots that int32 counts")
    if pages.shape[2] > MOST_WIDTH:
        return no("pages.shape[2]", pages.shape[2], f"at most {MOST_WIDTH}")
    tokens = k_TKD.shape[0]
    width = k_TKD.flatten(1).shape[1] + (0 if v_TKE is None else v_TKE.flatten(1).shape[1])
    return first_no(
        shape("v_TKE", v_TKE, (*k_TKD.shape[:2], v_TKE.shape[-1] if v_TKE is not None else 0)),
        shape("slots_T", slots_T, (tokens,)),
        shape("pages", pages, (*pages.shape[:2], width)),
    )


@kv_write.kernel("nki.kv_write", target="nki", supports=_takes)
def _kv_write(pages: Tensor, k_TKD: Tensor, v_TKE: Tensor | None, slots_T: Tensor) -> None:
    KV_WRITE[grid()](
        pages.view(-1, pages.shape[-1]),
        k_TKD.flatten(1).contiguous(),
        None if v_TKE is None else v_TKE.flatten(1).contiguous(),
        slots_T.to(torch.int32).view(-1, 1),
    )
