"""Mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, nearest
from vllm_neuron.functional.moe import WEIGHT_ON
from vllm_neuron.functional.route import GROUP_SCORES, SCORES
from vllm_neuron.nn.linear import divide
from vllm_neuron.nn.mlp import MLP, Clamp, GatedMLP
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.utils.weight_loader import (
    expert_range,
    experts_loader,
    fused_gate_up_weight_loader,
    replicated_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
    vector_loader,
    with_rank_override,
)


@dataclass(frozen=True)
class RouterConfig:
    """How experts are chosen and weighted, all in float32; ``NF.route`` has the formulas.

    A softmax over the chosen logits alone is a softmax over all with ``normalize``.

    Attributes:
        score: of the logits: ``softmax``, ``sigmoid``, ``sqrtsoftplus`` or ``sparsemixer``.
        normalize: the chosen weights are divided by their sum.
        scale: factor on the weights after that.
        bias: the logits have a bias.
        correction_bias: a stored bias on the scores, for the choice alone.
        groups, top_groups, group_score: experts come from the best groups of neighbours; a group is worth its ``max``
            or the sum of its two best (``top2_sum``).
        weight_on: weights multiply the experts' ``output``, or their ``input``.
        softcap: soft limit of the logits.
        jitter: width of ``sparsemixer``.
        input_norm_eps: the router's input is first divided by its root mean square, with this eps; None: it is not.
        input_scale: it is then multiplied by a learned vector [H] over ``sqrt(H)`` (Gemma 4).
        expert_scale: last of all, an expert's weight is multiplied by a learned number of that expert.

    Raises:
        ConfigError: a name that does not exist, or options that do not go together.
    """

    score: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    bias: bool = False
    correction_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: str | None = None
    weight_on: str = "output"
    softcap: float | None = None
    jitter: float | None = None
    input_norm_eps: float | None = None
    input_scale: bool = False
    expert_scale: bool = False

    def __post_init__(self) -> None:
        for field, value, known in (
            ("score", self.score, SCORES),
            ("weight_on", self.weight_on, WEIGHT_ON),
            ("group_score", self.group_score, (None, *GROUP_SCORES)),
        ):
            if value not in known:
                names = [name for name in known if name is not None]
                hint = nearest(value, names) if value is not None else ""
                raise ConfigError(f"RouterConfig: {field}", value, f"one of {', '.join(names)}", hint)
        if (self.groups > 1) != (self.group_score is not None):
            raise ConfigError("RouterConfig: group_score", self.group_score, f"one for {self.groups} groups, else None")
        if (self.score == "sparsemixer") != (self.jitter is not None):
            raise ConfigError("RouterConfig: jitter", self.jitter, "a number for sparsemixer, None for other scores")


class Router(nn.Module):
    """The router's weight [E, H], and what its config asks for, whole on every rank: bias, correction bias and expert
    scale [E], input scale [H].

    Shapes: x [T, H] -> weights [T, K] in float32, experts [T, K].
    """

    def __init__(
        self, hidden_size: int, experts: int, top_k: int, config: RouterConfig, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()

        def vector(wanted: bool, size: int = experts) -> nn.Parameter | None:
            if not wanted:
                return None
            made = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
            set_weight_loader(made, vector_loader(size))
            return made

        self.top_k, self.config = top_k, config
        self.weight = nn.Parameter(torch.empty(experts, hidden_size, dtype=dtype), requires_grad=False)
        self.bias, self.correction_bias = vector(config.bias), vector(config.correction_bias)
        self.input_scale, self.expert_scale = vector(config.input_scale, hidden_size), vector(config.expert_scale)

    def forward(self, x_TH: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        c = self.config
        weights_TK, experts_TK = NF.route(
            self._input(x_TH),
            self.weight,
            top_k=self.top_k,
            score=c.score,
            normalize=c.normalize,
            scale=c.scale,
            bias_E=self.bias,
            correction_bias_E=self.correction_bias,
            groups=c.groups,
            top_groups=c.top_groups,
            group_score=c.group_score,
            softcap=c.softcap,
            jitter=c.jitter,
        )
        if self.expert_scale is not None:
            weights_TK = weights_TK * self.expert_scale.float()[experts_TK]
        return weights_TK, experts_TK

    def _input(self, x_TH: Tensor) -> Tensor:
        if self.config.input_norm_eps is not None:
            x_TH = NF.rms_norm(x_TH.float(), None, eps=self.config.input_norm_eps)
        if self.input_scale is not None:
            x_TH = x_TH.float() * self.input_scale.float() * x_TH.shape[-1] ** -0.5
        return x_TH


class ExpertWeights(nn.Module):
    """One projection of a rank's experts: weight [experts, out, in], bias [experts, out] or None."""

    def __init__(self, experts: int, out_features: int, in_features: int, bias: bool, dtype: torch.dtype | None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out_features, in_features, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(experts, out_features, dtype=dtype), requires_grad=False) if bias else None


class Experts(nn.Module):
    """The experts of a rank: all of them with their width divided over the ranks, or whole ones of its own.

    The first projection is ``gate_up`` (gate rows first), or ``up`` without a gate. ``experts_loader`` says which forms
    of checkpoint load.

    Shapes: x [T, H], weights and experts [T, K] -> [T, H], the rank's part of the sum.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        experts: int,
        *,
        act: str,
        gated: bool,
        bias: bool,
        clamp: Clamp | None,
        weight_on: str,
        whole: bool,
        spare: int,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        group = get_tp_group()
        ranks = 1 if whole else group.world_size
        local = expert_range(experts, group.world_size, group.rank) if whole else range(experts)
        shard = divide("MoE: intermediate_size", intermediate_size, ranks)
        self.first, self.ranks = local.start, ranks
        self.act, self.gated, self.clamp, self.weight_on = act, gated, clamp, weight_on
        wide = 2 if gated else 1
        up = ExpertWeights(len(local), wide * shard, hidden_size, bias, dtype)
        self.gate_up: ExpertWeights | None = up if gated else None
        self.up: ExpertWeights | None = None if gated else up
        self.down = ExpertWeights(len(local), hidden_size, shard, bias, dtype)
        cut = fused_gate_up_weight_loader(shard, 0, ranks) if gated else sharding_weight_loader(0, shard, ranks)
        # With whole experts every rank cuts as the only one.
        cut_down = sharding_weight_loader(1, shard, ranks)
        rows = wide * intermediate_size
        for parameter, one, shape, pairs in (
            (up.weight, cut, [rows, hidden_size], gated),
            (up.bias, cut, [rows], gated),
            (self.down.weight, cut_down, [hidden_size, intermediate_size], False),
            (self.down.bias, replicated_weight_loader(), [hidden_size], False),
        ):
            if parameter is not None:
                inner = with_rank_override(one, 0) if whole else one
                set_weight_loader(parameter, experts_loader(local, experts, inner, shape, pairs=pairs, spare=spare))

    def forward(self, x_TH: Tensor, weights_TK: Tensor, experts_TK: Tensor) -> Tensor:
        """See the class."""
        up = self.gate_up if self.gate_up is not None else self.up
        assert up is not None
        # Each rank adds an equal share of the bias, so that the sum over ranks has it once.
        bias = self.down.bias if self.down.bias is None or self.ranks == 1 else self.down.bias / self.ranks
        clamp = self.clamp
        return NF.moe_experts(
            x_TH,
            weights_TK,
            experts_TK,
            up.weight,
            self.down.weight,
            act=self.act,
            gated=self.gated,
            up_bias_EF=up.bias,
            down_bias_EH=bias,
            clamp_limit=None if clamp is None else clamp.limit,
            clamp_alpha=None if clamp is None else clamp.alpha,
            up_shift=0.0 if clamp is None else clamp.up_shift,
            weight_on=self.weight_on,
            first_expert=self.first,
        )


class SharedGate(nn.Module):
    """A learned number for each token: ``sigmoid(x w)``, w [1, H], whole on every rank. [T, H] -> [T, 1]."""

    def __init__(self, hidden_size: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, hidden_size, dtype=dtype), requires_grad=False)

    def forward(self, x_TH: Tensor) -> Tensor:
        """See the class."""
        return torch.sigmoid(NF.linear(x_TH, self.weight.t()))


class MoE(nn.Module):
    """``sum of weight * expert(x)`` over the chosen experts, plus a shared expert; summed over the ranks once.

    Args:
        hidden_size: H.
        experts: E, routed experts.
        top_k: experts of each token.
        intermediate_size: I of one expert, divided over the ranks.
        act: activation name as in a Hugging Face config.
        router: how experts are chosen.
        gated: experts are ``down(act(gate(x)) * up(x))``, else ``down(act(up(x)))``.
        bias: the experts' projections have biases.
        clamp: limits of the gated product.
        shared: the MLP that every token passes.
        shared_gate: its output is multiplied by a learned sigmoid.
        output_scale: factor on the sum.
        zero_experts: further choices of the router whose expert hands its input on (LongCat).
        whole_experts: each rank has ``E / ranks`` experts in full instead of a share of each.
        dtype: of the parameters; torch's default when None.

    Shapes: x [T, H], what the router reads in its place [T, H] or None -> [T, H].

    Raises:
        ConfigError: more experts chosen than there are, or a width that the ranks do not divide.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        experts: int,
        top_k: int,
        intermediate_size: int,
        act: str,
        router: RouterConfig,
        gated: bool = True,
        bias: bool = False,
        clamp: Clamp | None = None,
        shared: GatedMLP | MLP | None = None,
        shared_gate: bool = False,
        output_scale: float = 1.0,
        zero_experts: int = 0,
        whole_experts: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._check(experts, top_k, router, gated, clamp, shared, shared_gate, zero_experts)
        NF.activation(act)
        self.group = get_tp_group()
        self.output_scale, self.first_zero = output_scale, experts if zero_experts else None
        self.router = Router(hidden_size, experts + zero_experts, top_k, router, dtype)
        self.experts = Experts(
            hidden_size,
            intermediate_size,
            experts,
            act=act,
            gated=gated,
            bias=bias,
            clamp=clamp,
            weight_on=router.weight_on,
            whole=whole_experts,
            spare=zero_experts,
            dtype=dtype,
        )
        self.shared = shared
        self.shared_gate = SharedGate(hidden_size, dtype) if shared_gate else None

    @staticmethod
    def _check(
        experts: int,
        top_k: int,
        router: RouterConfig,
        gated: bool,
        clamp: Clamp | None,
        shared: nn.Module | None,
        shared_gate: bool,
        zero_experts: int,
    ) -> None:
        total = experts + zero_experts
        if not 1 <= top_k <= total:
            raise ConfigError("MoE: top_k", top_k, f"1 to {total}, the number of experts")
        if total % router.groups or not 1 <= router.top_groups <= router.groups:
            expected = f"a divisor of {total} experts, and at most that many"
            raise ConfigError("RouterConfig: groups, top_groups", (router.groups, router.top_groups), expected)
        if total // router.groups * router.top_groups < top_k:
            raise ConfigError("MoE: top_k", top_k, f"at most the experts of {router.top_groups} groups")
        if clamp is not None and not gated:
            raise ConfigError("MoE: clamp", clamp, "None for experts without a gate")
        if shared_gate and shared is None:
            raise ConfigError("MoE: shared_gate", shared_gate, "False without a shared expert")
        if zero_experts and router.weight_on == "input":
            raise ConfigError("RouterConfig: weight_on", router.weight_on, "output, with zero_experts")

    def forward(self, x_TH: Tensor, routed_by_TH: Tensor | None = None) -> Tensor:
        """See the class."""
        weights_TK, experts_TK = self.router(x_TH if routed_by_TH is None else routed_by_TH)
        part_TH = self.experts(x_TH, weights_TK, experts_TK)
        if self.shared is not None:
            shared_TH = self.shared.partial(x_TH)
            part_TH = part_TH + (shared_TH if self.shared_gate is None else shared_TH * self.shared_gate(x_TH))
        y_TH: Tensor = self.group.all_reduce(part_TH)
        if self.first_zero is not None:
            kept_T1 = torch.where(experts_TK >= self.first_zero, weights_TK, 0).sum(-1, keepdim=True)
            y_TH = y_TH + (x_TH * kept_T1).to(x_TH.dtype)
        return y_TH if self.output_scale == 1.0 else y_TH * self.output_scale
