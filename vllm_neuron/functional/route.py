"""The choice of experts for each token, and their weights."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_neuron.errors import OperationError, nearest
from vllm_neuron.functional.operation import operation

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "sparsemixer")
GROUP_SCORES = ("max", "top2_sum")


@operation(compiler="a product with E columns and a top-k of E numbers, small beside the experts that it chooses")
def route(
    x_TH: Tensor,
    router_EH: Tensor,
    *,
    top_k: int,
    score: str = "softmax",
    normalize: bool = False,
    scale: float = 1.0,
    bias_E: Tensor | None = None,
    correction_bias_E: Tensor | None = None,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str | None = None,
    softcap: float | None = None,
    jitter: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights and indices of each token's experts; all of it in float32, whatever the inputs are.

    Args:
        x_TH: [T, H].
        router_EH: [E, H].
        top_k: K, experts of each token.
        score: of the logits l over all experts: ``softmax``, ``sigmoid``, ``sqrtsoftplus`` (sqrt(softplus(l))), or
            ``sparsemixer`` (see :func:`_sparsemixer`).
        normalize: the chosen weights are divided by their sum.
        scale: factor on the weights, after that.
        bias_E: added to the logits.
        correction_bias_E: added to the scores for the choice alone; weights are scores without it.
        groups, top_groups: experts are chosen from the ``top_groups`` best of ``groups`` runs of neighbours.
        group_score: a group's worth: its ``max``, or the sum of its two best (``top2_sum``). Needed with groups.
        softcap: logits become ``softcap * tanh(logits / softcap)``.
        jitter: sparsemixer's width.

    Returns:
        weights [T, K] in float32 and expert indices [T, K] in int64, best first.

    Raises:
        OperationError: options that do not go together.
    """
    _check(router_EH.shape[0], top_k, score, groups, top_groups, group_score, jitter)
    bias = None if bias_E is None else bias_E.float()
    logits_TE = torch.nn.functional.linear(x_TH.float(), router_EH.float(), bias)
    if softcap is not None:
        logits_TE = softcap * torch.tanh(logits_TE / softcap)
    if score == "sparsemixer":
        assert jitter is not None
        weights_TK, experts_TK = _sparsemixer(logits_TE, jitter)
    else:
        scores_TE = _scores(logits_TE, score)
        choice_TE = scores_TE if correction_bias_E is None else scores_TE + correction_bias_E.float()
        if groups > 1:
            choice_TE = _best_groups(choice_TE, groups, top_groups, group_score)
        experts_TK = choice_TE.topk(top_k, dim=-1).indices
        weights_TK = scores_TE.gather(-1, experts_TK)
    if normalize:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK * scale, experts_TK


def _check(
    experts: int, top_k: int, score: str, groups: int, top_groups: int, group_score: str | None, jitter: float | None
) -> None:
    if score not in SCORES:
        raise OperationError("route.score", score, f"one of {', '.join(SCORES)}", nearest(score, SCORES))
    if (score == "sparsemixer") != (jitter is not None):
        raise OperationError("route.jitter", jitter, "a number for sparsemixer, and None for other scores")
    if score == "sparsemixer" and (top_k != 2 or groups > 1):
        raise OperationError("route.top_k, groups", (top_k, groups), "2 experts and 1 group for sparsemixer")
    if groups < 1 or experts % groups or not 1 <= top_groups <= groups:
        raise OperationError("route.groups, top_groups", (groups, top_groups), f"divisors of {experts}, at most all")
    if not 1 <= top_k <= experts // groups * top_groups:
        raise OperationError("route.top_k", top_k, f"1 to {experts // groups * top_groups} experts")
    if (groups > 1) != (group_score is not None) or group_score not in (None, *GROUP_SCORES):
        raise OperationError("route.group_score", group_score, f"one of {', '.join(GROUP_SCORES)}; None for one group")
    if group_score == "top2_sum" and experts // groups < 2:
        raise OperationError("route.groups", groups, "groups of two experts or more, for top2_sum")


def _scores(logits_TE: Tensor, score: str) -> Tensor:
    if score == "softmax":
        return logits_TE.softmax(-1)
    if score == "sigmoid":
        return logits_TE.sigmoid()
    return torch.nn.functional.softplus(logits_TE).sqrt()


def _best_groups(choice_TE: Tensor, groups: int, top_groups: int, group_score: str | None) -> Tensor:
    """The choice values, minus infinity outside the best groups."""
    by_group = choice_TE.unflatten(-1, (groups, -1))
    worth_TG = by_group.amax(-1) if group_score == "max" else by_group.topk(2, dim=-1).values.sum(-1)
    best = worth_TG.topk(top_groups, dim=-1).indices
    keep = torch.zeros_like(worth_TG, dtype=torch.bool).scatter(-1, best, True)
    return torch.where(keep.unsqueeze(-1), by_group, -torch.inf).flatten(-2)


def _sparsemixer(logits_TE: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """Two experts one after the other, each weighted by its softmax over the logits near it (no sampling).

    Source: SparseMixer, and its evaluation form in transformers' Phi-3.5 MoE.
    """
    weights, experts = [], []
    left_TE = logits_TE
    for _ in range(2):
        best_T1, expert_T1 = left_TE.max(-1, keepdim=True)
        far = (best_T1 - logits_TE) / logits_TE.abs().clamp(min=best_T1) > 2 * jitter
        weights.append(left_TE.masked_fill(far, -torch.inf).softmax(-1).gather(-1, expert_T1))
        experts.append(expert_T1)
        left_TE = left_TE.scatter(-1, expert_T1, -torch.inf)
    return torch.cat(weights, -1), torch.cat(experts, -1)
