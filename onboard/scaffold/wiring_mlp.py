"""Feed-forward parts of an architecture -> blocks of ``vllm_neuron.nn``."""

from __future__ import annotations

from onboard.arch.blocks import MLP, Clamp, LayerNorms, MoE, Norm, Router
from onboard.scaffold.calls import Arg, Call
from onboard.scaffold.wiring_norm import head_norm, norm


def mlp(m: MLP | None, hidden: int, path: str = "mlp") -> Call | None:
    """A dense feed-forward block."""
    if m is None:
        return None
    args = [
        Arg("", hidden, "hidden"),
        Arg("", m.size, f"{path}.size"),
        Arg("act", m.activation, f"{path}.activation"),
    ]
    if m.gated and m.up_bias == m.down_bias:
        args.append(Arg("bias", m.up_bias, f"{path}.bias", False))
    else:
        args += [
            Arg("up_bias", m.up_bias, f"{path}.bias", False),
            Arg("down_bias", m.down_bias, f"{path}.bias", False),
        ]
    if not m.gated:
        return Call("MLP", tuple(args))
    args.append(Arg("down_norm", head_norm(m.down_norm, f"{path}.down_norm", "full"), f"{path}.down_norm", None))
    args.append(Arg("clamp", clamp(m.clamp), f"{path}.clamp", None))
    return Call("GatedMLP", tuple(args))


def clamp(c: Clamp | None) -> Call | None:
    """Limits of a gated activation."""
    if c is None:
        return None
    return Call(
        "Clamp",
        (
            Arg("", c.limit, "moe.clamp"),
            Arg("alpha", c.alpha, "moe.clamp.alpha", None),
            Arg("up_shift", c.up_shift, "moe.clamp.up_shift", 0.0),
        ),
    )


def moe(m: MoE, hidden: int) -> Call:
    """A mixture of experts with its shared expert."""
    return Call(
        "MoE",
        (
            Arg("", hidden, "hidden"),
            Arg("experts", m.experts, "moe.experts"),
            Arg("top_k", m.top_k, "moe.top_k"),
            Arg("intermediate_size", m.size, "moe.size"),
            Arg("act", m.activation, "moe.activation"),
            Arg("router", router(m.router), "moe.router"),
            Arg("gated", m.gated, "moe.gated", True),
            Arg("bias", m.up_bias or m.down_bias, "moe.bias", False),
            Arg("clamp", clamp(m.clamp), "moe.clamp", None),
            Arg("shared", mlp(m.shared, hidden, "moe.shared"), "moe.shared", None),
            Arg("shared_gate", m.shared_gate, "moe.shared_gate", False),
            Arg("output_scale", m.output_scale, "moe.output_scale", 1.0),
        ),
    )


def beside(dense: MLP, experts: MoE, norms: LayerNorms, hidden: int) -> Call:
    """Experts beside a dense MLP, each half with norms of its own."""

    def own(n: Norm | None) -> Call | None:
        return norm(n, hidden, "hidden", "norms")

    return Call(
        "MoEBesideMLP",
        (
            Arg("", mlp(dense, hidden)),
            Arg("", moe(experts, hidden)),
            Arg("post_dense_norm", own(norms.post_dense)),
            Arg("pre_moe_norm", own(norms.pre_moe)),
            Arg("post_moe_norm", own(norms.post_moe)),
        ),
    )


def router(r: Router) -> Call:
    """How experts are chosen."""
    path = "moe.router"
    return Call(
        "RouterConfig",
        (
            Arg("score", r.score, f"{path}.score", "softmax"),
            Arg("normalize", r.normalize, f"{path}.normalize", False),
            Arg("scale", r.scale, f"{path}.scale", 1.0),
            Arg("bias", r.bias, f"{path}.bias", False),
            Arg("correction_bias", r.correction_bias, f"{path}.correction_bias", False),
            Arg("softcap", r.softcap, f"{path}.softcap", None),
            Arg("jitter", r.jitter, f"{path}.jitter", None),
            Arg("groups", r.groups, f"{path}.groups", 1),
            Arg("top_groups", r.top_groups, f"{path}.top_groups", 1),
            Arg("group_score", r.group_score, f"{path}.group_score", None),
            Arg("weight_on", r.weight_on, f"{path}.weight_on", "output"),
            Arg("input_norm_eps", r.input_norm.eps if r.input_norm else None, "norms.eps", None),
            Arg("input_scale", r.input_scale, f"{path}.input_scale", False),
            Arg("expert_scale", r.expert_scale, f"{path}.expert_scale", False),
        ),
    )
