"""The coverage of mixtures of experts: what ``MoE`` and ``RouterConfig`` take."""

from __future__ import annotations

from typing import Any

from onboard.arch.blocks import Norm
from onboard.diff.coverage import ACTIVATIONS, Answer, Call, Code, Missing, Rule, Wiring, only, takes
from onboard.diff.show import jsonable, text

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "sparsemixer")


def moe(value: Any) -> Answer:
    """The block."""
    return Call("MoE") if value else Wiring("nothing to do, the part is not there")


def clamp(value: Any) -> Answer:
    """Limits of the experts' gated product."""
    return Call("MoE", (("clamp", None if value is None else Code("Clamp(limit, ...)")),))


def shared(value: Any) -> Answer:
    """A block of its own, summed with the experts."""
    return Call("MoE", (("shared", Code("GatedMLP(...)") if value else None),))


def shared_activation(value: str) -> Answer:
    """The names that functional/mlp.py knows."""
    if value not in ACTIVATIONS:
        return Missing(f"activation {value} in functional/mlp.py (it has {', '.join(sorted(ACTIVATIONS))})")
    return Call("GatedMLP", (("act", ACTIVATIONS[value]),))


def expert_activation(value: str) -> Answer:
    """As for a dense block, named by the experts' block."""
    answer = shared_activation(value)
    return Call("MoE", answer.args) if isinstance(answer, Call) else answer


def expert_bias(value: str) -> Answer:
    """All projections, or none."""
    if value not in ("none", "up and down"):
        return Missing(f"experts with a bias on {value} alone")
    return Call("MoE", (("bias", value != "none"),))


def score(value: str) -> Answer:
    """The kinds of functional/route.py."""
    if value not in SCORES:
        return Missing(f"the {value} score in functional/route.py (it has {', '.join(SCORES)})")
    return Call("RouterConfig", (("score", value),))


def input_norm(value: Norm | None) -> Answer:
    """An RMS norm without a weight."""
    if value is None:
        return Call("RouterConfig", (("input_norm_eps", None),))
    if value != Norm("rms", value.eps, weight=False):
        return Missing("before the router: " + text(jsonable(value)))
    return Call("RouterConfig", (("input_norm_eps", value.eps),))


MIXTURE: dict[str, Rule] = {
    "moe": moe,
    "moe.experts": takes("MoE", "experts"),
    "moe.top_k": takes("MoE", "top_k"),
    "moe.size": takes("MoE", "intermediate_size"),
    "moe.clamp": clamp,
    "moe.output_scale": takes("MoE", "output_scale"),
    "moe.latent": only(False, "MoE", "projections around the experts, which work in a narrower width"),
    "moe.latent_size": only(None, "MoE", "experts that work in a width of {}"),
    "moe.latent_bias": only(False, "MoE", "a bias on the projections around the experts"),
    "moe.shared": shared,
    "moe.shared.size": takes("GatedMLP", "intermediate_size"),
    "moe.shared.activation": shared_activation,
    "moe.shared.gated": lambda value: Call("MoE", (("shared", Code("GatedMLP(...)" if value else "MLP(...)")),)),
    "moe.shared.up_bias": takes("GatedMLP", "bias"),
    "moe.shared.down_bias": takes("GatedMLP", "bias"),
    "moe.shared.fused": lambda value: (
        Call("Map", (), "gate and up stored as one") if value else Call("Fuse", (), "gate and up stored apart")
    ),
    "moe.shared_gate": takes("MoE", "shared_gate"),
    "moe.router.score": score,
    "moe.router.normalize": takes("RouterConfig", "normalize"),
    "moe.router.scale": takes("RouterConfig", "scale"),
    "moe.router.bias": takes("RouterConfig", "bias"),
    "moe.router.correction_bias": takes("RouterConfig", "correction_bias"),
    "moe.router.groups": takes("RouterConfig", "groups"),
    "moe.router.top_groups": takes("RouterConfig", "top_groups"),
    "moe.router.group_score": takes("RouterConfig", "group_score"),
    "moe.router.weight_on": takes("RouterConfig", "weight_on"),
    "moe.router.softcap": takes("RouterConfig", "softcap"),
    "moe.router.jitter": takes("RouterConfig", "jitter"),
    "moe.router.hash": only(False, "RouterConfig", "a choice of experts by a table of token ids"),
    "moe.router.input_norm": input_norm,
    "moe.router.input_scale": takes("RouterConfig", "input_scale"),
    "moe.router.expert_scale": takes("RouterConfig", "expert_scale"),
}

# What a field of the feed-forward block means where every layer has experts and no dense block.
EXPERTS_ALONE: dict[str, Rule] = {
    "mlp.activation": expert_activation,
    "mlp.gated": takes("MoE", "gated"),
    "mlp.bias": expert_bias,
}
