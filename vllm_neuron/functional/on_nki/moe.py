"""Experts of a mixture on NKI: the choice of each token becomes slots, one for each expert that is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vllm_neuron.functional.moe import check_options, moe_experts
from vllm_neuron.functional.on_nki.limits import PARTITIONS, first_no, grid, one_type, shape
from vllm_neuron.functional.on_nki.mlp import ACTIVATIONS
from vllm_neuron.functional.operation import YES, Support, no
from vllm_neuron.nki.kernels.moe_decode import moe_decode_kernel
from vllm_neuron.nki.wrap import wrap_nki

MOST_TOKENS = 512
# Bytes a partition: SBUF without what is small.
ROOM = 176 * 1024


def _like_x(x: Tensor, **_: Any) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


EXPERTS = wrap_nki(moe_decode_kernel, outputs=_like_x)


def _room(tokens: int, hidden: int, inner: int, itemsize: int) -> Support:
    """Whether activations and the weights in flight fit in SBUF."""
    blocks_h, blocks_i = -(-hidden // PARTITIONS), -(-inner // PARTITIONS)
    activations = tokens * (3 * blocks_h + 2 * blocks_i) * itemsize + 8 * tokens
    weights = 2 * (hidden + inner) * itemsize + max(blocks_h, blocks_i) * PARTITIONS * itemsize
    if activations + weights > ROOM:
        limit = f"tokens and sizes whose activations and weights take at most {ROOM} bytes a partition"
        return no("bytes a partition", activations + weights, limit)
    return YES


def _takes(
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EFH: Tensor,
    down_EHI: Tensor,
    *,
    act: str = "silu",
    gated: bool = True,
    up_bias_EF: Tensor | None = None,
    down_bias_EH: Tensor | None = None,
    clamp_limit: float | None = None,
    clamp_alpha: float | None = None,
    up_shift: float = 0.0,
    weight_on: str = "output",
    first_expert: int = 0,
) -> Support:
    if act not in ACTIVATIONS and (clamp_alpha is None or not gated):
        return no("act", act, f"one of {', '.join(ACTIVATIONS)}")
    if clamp_limit is not None and clamp_limit < 0:
        return no("clamp_limit", clamp_limit, "None or a number of at least 0")
    if x_TH.shape[0] > MOST_TOKENS:
        return no("x_TH.shape[0]", x_TH.shape[0], f"at most {MOST_TOKENS} tokens")
    for name, weight in (("up_EFH", up_EFH), ("down_EHI", down_EHI)):
        if not weight.is_contiguous():
            return no(f"{name}.stride()", weight.stride(), "a contiguous tensor")
    experts, hidden, inner = down_EHI.shape
    features = 2 * inner if gated else inner
    return first_no(
        shape("x_TH", x_TH, (x_TH.shape[0], hidden)),
        shape("up_EFH", up_EFH, (experts, features, hidden)),
        shape("up_bias_EF", up_bias_EF, (experts, features)),
        shape("down_bias_EH", down_bias_EH, (experts, hidden)),
        shape("experts_TK", experts_TK, (x_TH.shape[0], experts_TK.shape[-1])),
        shape("weights_TK", weights_TK, tuple(experts_TK.shape)),
        one_type("x_TH", x_TH, up_EFH=up_EFH, down_EHI=down_EHI, up_bias_EF=up_bias_EF, down_bias_EH=down_bias_EH),
        _room(x_TH.shape[0], x_TH.shape[1], down_EHI.shape[2], x_TH.dtype.itemsize),
    )


def slots(weights_TK: Tensor, experts_TK: Tensor, experts: int, first_expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """The experts that some token chose, in rising order, in a fixed number of slots.

    Args:
        weights_TK, experts_TK: [T, K], as ``NF.route`` gives them.
        experts: E, how many this rank holds.
        first_expert: the first of them.

    Returns:
        int32 [1, S] with S = min(T * K, E), the index of each slot's expert and E for a slot without one; float32
        [S, T], the weight of it for each token, 0 where it was not chosen; float32 [S, T], 1 where it was chosen.
    """
    count = min(experts_TK.numel(), experts)
    numbers_E = torch.arange(experts, device=experts_TK.device)
    hit_TKE = (experts_TK - first_expert)[..., None] == numbers_E
    weight_TE = torch.where(hit_TKE, weights_TK[..., None], 0).sum(1)
    chosen_TE = hit_TKE.any(1)
    used_E = chosen_TE.any(0)
    order_S = (used_E.float() * (2 * experts) - numbers_E).topk(count).indices
    index_S = torch.where(used_E[order_S], order_S, experts).to(torch.int32)
    weight_ST = weight_TE[:, order_S].T.float().contiguous()
    return index_S[None], weight_ST, chosen_TE[:, order_S].T.float().contiguous()


@moe_experts.kernel("nki.moe_decode", target="nki", supports=_takes)
def _experts(
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EFH: Tensor,
    down_EHI: Tensor,
    *,
    act: str = "silu",
    gated: bool = True,
    up_bias_EF: Tensor | None = None,
    down_bias_EH: Tensor | None = None,
    clamp_limit: float | None = None,
    clamp_alpha: float | None = None,
    up_shift: float = 0.0,
    weight_on: str = "output",
    first_expert: int = 0,
) -> Tensor:
    check_options(gated, clamp_limit, clamp_alpha, up_shift, weight_on)
    index_1S, weight_ST, chosen_ST = slots(weights_TK, experts_TK, up_EFH.shape[0], first_expert)
    on_input = weight_on == "input"
    out: Tensor = EXPERTS[grid()](
        x_TH.contiguous(),
        up_EFH,
        down_EHI,
        index_1S,
        chosen_ST if on_input else weight_ST,
        weight_ST if on_input else None,
        up_bias_EF,
        down_bias_EH,
        ACTIVATIONS.get(act, act),
        gated,
        clamp_limit,
        clamp_alpha,
        up_shift,
    )
    return out
