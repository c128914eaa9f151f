"""Experts of a mixture: their products, weighted and summed for each token."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.errors import OperationError
from vllm_neuron.functional.mlp import activation, check_gate
from vllm_neuron.functional.operation import YES, Support, no, operation

WEIGHT_ON = ("output", "input")


@operation
def moe_experts(
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
    """``sum over k of weights[t, k] * expert[experts[t, k]](x[t])``, for the experts that this rank holds.

    The reference passes every token through every expert and masks: nothing in it depends on the choice but numbers.

    Args:
        x_TH: [T, H].
        weights_TK, experts_TK: [T, K], of :func:`route`.
        up_EFH: [E, F, H]; F = 2 * I with gate rows first, or I when not ``gated``.
        down_EHI: [E, H, I].
        act: activation name as in a config.
        gated: an expert is ``down(act(gate) * (up + up_shift))``, else ``down(act(up))``.
        up_bias_EF, down_bias_EH: [E, F], [E, H] or None.
        clamp_limit: gate is cut above it and up on both sides, before the activation.
        clamp_alpha: the activation is ``gate * sigmoid(clamp_alpha * gate)`` in place of ``act``.
        up_shift: added to up after the clamp.
        weight_on: ``output``, or ``input``: x is multiplied by the weight before the expert.
        first_expert: index of the first of the E experts among all of the layer; choices of others add nothing.

    Returns:
        [T, H] in x's dtype; a rank's part of the sum when I or the experts are sharded.

    Raises:
        OperationError: a clamp without a gate, or another ``weight_on``.
    """
    check_options(gated, clamp_limit, clamp_alpha, up_shift, weight_on)
    y_TH = torch.zeros_like(x_TH)
    for e in range(up_EFH.shape[0]):
        weight_T1 = torch.where(experts_TK == first_expert + e, weights_TK, 0).sum(-1, keepdim=True)
        y_TH = y_TH + _weighted(
            x_TH,
            weight_T1,
            up_EFH[e],
            down_EHI[e],
            up_bias_F=None if up_bias_EF is None else up_bias_EF[e],
            down_bias_H=None if down_bias_EH is None else down_bias_EH[e],
            on_input=weight_on == "input",
            chosen_T1=(experts_TK == first_expert + e).any(-1, keepdim=True),
            unit=(act, gated, clamp_limit, clamp_alpha, up_shift),
        )
    return y_TH


Unit = tuple[str, bool, float | None, float | None, float]


def check_options(gated: bool, limit: float | None, alpha: float | None, up_shift: float, weight_on: str) -> None:
    """Refuse options that no form of ``moe_experts`` has.

    Raises:
        OperationError: a clamp without a gate, or another ``weight_on``.
    """
    if weight_on not in WEIGHT_ON:
        raise OperationError("moe_experts.weight_on", weight_on, f"one of {', '.join(WEIGHT_ON)}")
    check_gate("moe_experts", gated, limit, alpha, up_shift)


def _weighted(
    x_TH: Tensor,
    weight_T1: Tensor,
    up_FH: Tensor,
    down_HI: Tensor,
    *,
    up_bias_F: Tensor | None,
    down_bias_H: Tensor | None,
    on_input: bool,
    chosen_T1: Tensor | None,
    unit: Unit,
) -> Tensor:
    """One expert's part of the sum; rows where ``chosen_T1`` is False are zero."""
    scaled_TH = (x_TH * weight_T1).to(x_TH.dtype) if on_input else x_TH
    inner_TI = _activate(torch.nn.functional.linear(scaled_TH, up_FH, up_bias_F), unit)
    y_TH = torch.nn.functional.linear(inner_TI, down_HI, down_bias_H)
    if not on_input:
        y_TH = (y_TH * weight_T1).to(x_TH.dtype)
    return y_TH if chosen_T1 is None else torch.where(chosen_T1, y_TH, 0)


def _activate(product_TF: Tensor, unit: Unit) -> Tensor:
    act, gated, limit, alpha, up_shift = unit
    if not gated:
        return activation(act)(product_TF)
    gate, up = product_TF.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    gate = activation(act)(gate) if alpha is None else gate * torch.sigmoid(alpha * gate)
    return gate * (up + up_shift) if up_shift else gate * up


@torch.library.custom_op("vllm_neuron::chosen_experts", mutates_args=())
def _chosen_experts(
    x_TH: Tensor,
    weights_TK: Tensor,
    experts_TK: Tensor,
    up_EFH: Tensor,
    down_EHI: Tensor,
    up_bias_EF: Tensor | None,
    down_bias_EH: Tensor | None,
    act: str,
    gated: bool,
    clamp_limit: float | None,
    clamp_alpha: float | None,
    up_shift: float,
    on_input: bool,
    first_expert: int,
) -> Tensor:
    """As one operator, so that torch.compile does not meet the loop over the chosen experts."""
    y_TH = torch.zeros_like(x_TH)
    local_TK = experts_TK - first_expert
    for e in local_TK.unique().tolist():
        if not 0 <= e < up_EFH.shape[0]:
            continue
        tokens, slots = (local_TK == e).nonzero(as_tuple=True)
        part = _weighted(
            x_TH[tokens],
            weights_TK[tokens, slots].unsqueeze(-1),
            up_EFH[e],
            down_EHI[e],
            up_bias_F=None if up_bias_EF is None else up_bias_EF[e],
            down_bias_H=None if down_bias_EH is None else down_bias_EH[e],
            on_input=on_input,
            chosen_T1=None,
            unit=(act, gated, clamp_limit, clamp_alpha, up_shift),
        )
        y_TH.index_add_(0, tokens, part)
    return y_TH


@_chosen_experts.register_fake
def _(x_TH: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x_TH)


def _supports(
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
    return YES if x_TH.device.type == "cpu" else no("device", x_TH.device.type, "cpu")


@moe_experts.kernel("chosen_experts", target="cpu", supports=_supports)
def _cpu(
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
    """Reads the chosen experts' weights alone: a decode step of one token multiplies by K experts and not by E."""
    check_options(gated, clamp_limit, clamp_alpha, up_shift, weight_on)
    out: Tensor = torch.ops.vllm_neuron.chosen_experts(
        x_TH, weights_TK, experts_TK, up_EFH, down_EHI, up_bias_EF, down_bias_EH,
        act, gated, clamp_limit, clamp_alpha, up_shift, weight_on == "input", first_expert,
    )  # fmt: skip
    return out
