"""The largest logits on NKI; ranks then compare theirs as the references do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.embedding import argmax, best_of_ranks, topk, topk_of_ranks
from vllm_neuron.functional.on_nki.limits import first_no, grid, one_type
from vllm_neuron.functional.operation import YES, Support, no
from vllm_neuron.nki.kernels.sampling import EIGHT, MOST_CANDIDATES, PIECE, argmax_kernel, topk_kernel
from vllm_neuron.nki.wrap import wrap_nki
from vllm_neuron.parallel import Group, get_tp_group

# Indices are fp32 on the vector engine.
MOST_COLUMNS = 2**24

Results = list[tuple[tuple[int, ...], torch.dtype]]


def _pair(logits: Tensor, k: int = 1, **_: Any) -> Results:
    shape = (logits.shape[0], k)
    return [(shape, torch.float32), (shape, torch.int32)]


ARGMAX = wrap_nki(argmax_kernel, outputs=_pair)
TOPK = wrap_nki(topk_kernel, outputs=_pair)


def _rows(logits_BV: Tensor) -> Support:
    if logits_BV.ndim != 2:
        return no("logits_BV.shape", tuple(logits_BV.shape), "two dimensions, rows and vocabulary")
    if logits_BV.shape[1] >= MOST_COLUMNS:
        return no("logits_BV.shape[1]", logits_BV.shape[1], f"fewer than {MOST_COLUMNS} columns")
    return one_type("logits_BV", logits_BV)


def _takes_argmax(logits_BV: Tensor, *, offset: int = 0, group: Group | None = None) -> Support:
    return _rows(logits_BV)


def _takes_topk(logits_BV: Tensor, k: int, *, offset: int = 0, group: Group | None = None) -> Support:
    answer = _rows(logits_BV)
    return first_no(answer, _few(logits_BV.shape[-1], k)) if answer.ok else answer


def _few(columns: int, k: int) -> Support:
    """Whether the candidates of a row fit the second search."""
    pieces = -(-columns // PIECE)
    most = (MOST_CANDIDATES - EIGHT) // pieces // EIGHT * EIGHT
    if not 1 <= k <= min(columns, most):
        return no("k", k, f"1 to {min(columns, most)} of {columns} columns")
    return YES


@argmax.kernel("nki.argmax", target="nki", supports=_takes_argmax)
def _argmax(logits_BV: Tensor, *, offset: int = 0, group: Group | None = None) -> Tensor:
    best_B1, index_B1 = ARGMAX[grid()](logits_BV.contiguous())
    return best_of_ranks(best_B1[:, 0], index_B1[:, 0].long() + offset, group or get_tp_group())


@topk.kernel("nki.topk", target="nki", supports=_takes_topk)
def _topk(logits_BV: Tensor, k: int, *, offset: int = 0, group: Group | None = None) -> tuple[Tensor, Tensor]:
    values_BK, indices_BK = TOPK[grid()](logits_BV.contiguous(), k)
    return topk_of_ranks(values_BK, indices_BK.long() + offset, group or get_tp_group())
