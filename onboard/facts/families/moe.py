"""MLPs and mixtures of experts from a config, by the family's routing style."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onboard.arch.blocks import MLP, Clamp, MoE, Router
from onboard.facts.families.common import MAX_WIDTH, activation, decide
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader


@dataclass(frozen=True)
class Style:
    """How a family routes. ``size``: the key of the experts' width. ``shared``: ``count`` (a number of shared experts,
    each as wide as an expert), ``size`` (a key of the width) or None; ``normalize``: true, false or ``"?key"``.
    ``correction``: true, false or ``"?key"``; ``scaled``: routed_scaling_factor is honoured."""

    size: str = "moe_intermediate_size"
    score: str = "softmax"
    normalize: bool | str = True
    correction: bool | str = False
    scaled: bool = False
    grouped: bool = False
    shared: str | None = None
    shared_gate: bool = False
    router_bias: bool = False


STYLES = {
    "mixtral": Style(size="intermediate_size"),
    "dbrx": Style(size="intermediate_size"),
    "qwen": Style(normalize="?norm_topk_prob"),
    "qwen2": Style(normalize="?norm_topk_prob", shared="shared_expert_intermediate_size", shared_gate=True),
    "qwen3_5": Style(shared="shared_expert_intermediate_size", shared_gate=True),
    "deepseek_v2": Style(normalize=False, scaled=True, grouped=True, shared="count"),
    "deepseek_v3": Style(score="sigmoid", normalize="?norm_topk_prob", correction=True, scaled=True, grouped=True,
                         shared="count"),
    "minimax_m2": Style(size="intermediate_size", score="sigmoid", correction=True),
    "lfm2": Style(score="sigmoid", normalize="?norm_topk_prob", correction="?use_expert_bias", scaled=True),
    "granite_shared": Style(size="intermediate_size", shared="shared_intermediate_size"),
    "granite": Style(size="intermediate_size"),
    "sigmoid_shared": Style(score="sigmoid", correction=True, scaled=True, shared="count"),
    "laguna": Style(score="sigmoid", correction=True, scaled=True, shared="shared_expert_intermediate_size"),
    "minimax_m3": Style(score="sigmoid", correction=True, scaled=True, shared="shared_intermediate_size"),
    "mimo_v2": Style(score="sigmoid", normalize="?norm_topk_prob", correction=True, scaled=True, grouped=True),
    "aria": Style(size="intermediate_size", shared="count"),
    "ernie": Style(correction=True, shared="count"),
    "hunyuan": Style(size="intermediate_size", shared="intermediate_size"),
    "jamba": Style(size="intermediate_size", normalize=False),
    "longcat": Style(normalize=False, correction=True, scaled=True),
    "olmoe": Style(size="intermediate_size", normalize="?norm_topk_prob"),
}  # fmt: skip


def mlp(r: Reader, family: Family, size: int | None = None) -> MLP:
    """The dense MLP; ``size`` where it is not the ordinary one."""
    if size is None:
        size = r.integer("intermediate_size", "mlp.size", maximum=MAX_WIDTH)
    bias = decide(r, family.mlp_bias, "mlp.bias")
    r.known("mlp.gated")
    return MLP(size, activation(r, family), family.gated, bias, bias, fused=family.fused)


def moe(r: Reader, family: Family, style: Style) -> MoE:
    """The experts and their router.

    Raises:
        ConfigError: more experts chosen than there are, or groups that do not divide them.
    """
    experts = r.integer("num_experts", "moe.experts", maximum=1_000_000)
    given = r.maybe_integer("num_experts_per_tok", "moe.top_k")
    top_k = r.defaults.get("num_experts_per_tok") if given is None else given
    if top_k is None:
        r.warn(
            "num_experts_per_tok is unspecified, in the config and in the family's defaults: "
            "no routed expert is counted as active"
        )
        top_k = 0
    if top_k > experts:
        raise r.wrong("num_experts_per_tok", top_k, f"at most the {experts} experts")
    r.known("moe.router.score")
    if family.moe == "deepseek_v2" and r.find("norm_topk_prob")[0]:
        r.notes.append("norm_topk_prob is not read by transformers' DeepSeek V2: the weights keep their sum")
    size = r.integer(style.size, "moe.size", maximum=MAX_WIDTH)
    act = activation(r, family, "moe.activation")
    return MoE(
        experts=experts,
        top_k=top_k,
        size=size,
        activation=act,
        router=router(r, style, experts),
        gated=family.gated,
        shared=_shared(r, family, style, size, act),
        shared_gate=style.shared_gate,
    )


def router(r: Reader, style: Style, experts: int) -> Router:
    """The routing options that the style honours."""
    if style.score == "softmax" and r.maybe_text("topk_method", "moe.router.groups") == "greedy":
        style = replace(style, grouped=False)
    r.use("topk_method", "n_group", "topk_group")
    groups = (r.maybe_integer("n_group", "moe.router.groups") or 1) if style.grouped else 1
    top_groups = (r.maybe_integer("topk_group", "moe.router.top_groups") or 1) if style.grouped else 1
    if experts % groups:
        raise r.wrong("n_group", groups, f"a divisor of the {experts} experts")
    if top_groups > groups:
        raise r.wrong("topk_group", top_groups, f"at most the {groups} groups")
    r.use("scoring_func", "moe_layer_freq")
    r.known("moe.router.group_score")
    return Router(
        score=style.score,
        normalize=decide(r, style.normalize, "moe.router.normalize"),
        scale=(r.maybe_decimal("routed_scaling_factor", "moe.router.scale") or 1.0) if style.scaled else 1.0,
        bias=style.router_bias,
        correction_bias=decide(r, style.correction, "moe.router.correction_bias"),
        groups=groups,
        top_groups=top_groups,
        group_score=None if groups == 1 else ("top2_sum" if style.score == "sigmoid" else "max"),
    )


def _shared(r: Reader, family: Family, style: Style, size: int, act: str) -> MLP | None:
    if style.shared is None:
        return None
    at = "moe.shared.size"
    if style.shared == "count":
        count = r.maybe_integer("num_shared_experts", "moe.shared", minimum=0)
        keys = r.find(style.size)[1].key, r.find("num_shared_experts")[1].key
        r.derived(at, " * ".join(str(key) for key in keys))
        width = size * count if count else 0
    else:
        r.find(style.shared, "moe.shared")
        width = r.maybe_integer(style.shared, at, minimum=0) or 0
    if not width:
        return None
    r.find("hidden_act", "moe.shared.activation")
    bias = decide(r, family.mlp_bias, "moe.shared.bias")
    return MLP(width, act, family.gated, bias, bias)


def swiglu_clamp(r: Reader, *, gpt_oss: bool) -> Clamp | None:
    """``swiglu_limit`` as a clamp; gpt-oss also scales the sigmoid and adds 1 to up."""
    limit = r.maybe_decimal("swiglu_limit", "moe.clamp", minimum=0.0)
    if not limit:
        return None
    if not gpt_oss:
        return Clamp(limit)
    r.known("moe.clamp.up_shift")
    return Clamp(limit, alpha=r.decimal("swiglu_alpha", "moe.clamp.alpha"), up_shift=1.0)
