"""Routing and experts: choices that families differ in, and the CPU kernel against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, OperationError
from vllm_neuron.nn import Clamp, MoE, RouterConfig
from vllm_neuron.parallel import run_in_threads


def route(logits: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Route on given logits [T, E]."""
    return NF.route(logits, torch.eye(logits.shape[1]), **options)


LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.0, -3.0, 0.0, 1.5, -2.0]])


def test_normalised_softmax_is_the_softmax_of_the_chosen() -> None:
    weights, experts = route(LOGITS, top_k=3, normalize=True)
    assert experts.tolist() == [[0, 6, 3]]
    torch.testing.assert_close(weights, LOGITS[:, [0, 6, 3]].softmax(-1))


def test_the_correction_bias_changes_the_choice_and_not_the_weight() -> None:
    bias = torch.zeros(8)
    bias[4] = 2.0
    weights, experts = route(LOGITS, top_k=2, score="sigmoid", correction_bias_E=bias)
    assert experts.tolist() == [[4, 0]]
    torch.testing.assert_close(weights, LOGITS[:, [4, 0]].sigmoid())


def test_groups_by_their_best_or_their_two_best() -> None:
    # Groups of two: (2, -1), (0.5, 1), (-3, 0), (1.5, -2).
    options: dict[str, Any] = {"top_k": 2, "score": "sigmoid", "groups": 4, "top_groups": 1}
    logits = torch.tensor([[2.0, -9.0, 1.5, 1.4, 0.0, 0.0, 0.0, 0.0]])
    assert route(logits, group_score="max", **options)[1].tolist() == [[0, 1]]
    assert route(logits, group_score="top2_sum", **options)[1].tolist() == [[2, 3]]


def test_experts_outside_the_groups_are_never_chosen_however_low_the_others() -> None:
    bias = torch.full((8,), -5.0)
    _, experts = route(
        LOGITS, top_k=4, score="sigmoid", correction_bias_E=bias, groups=2, top_groups=1, group_score="max"
    )
    assert sorted(experts[0].tolist()) == [0, 1, 2, 3]


def test_softcap_and_bias_come_before_the_scores() -> None:
    bias = torch.arange(8.0)
    weights, experts = route(LOGITS, top_k=8, bias_E=bias, softcap=2.0)
    wanted = (2 * torch.tanh((LOGITS + bias) / 2)).softmax(-1)
    torch.testing.assert_close(weights, wanted.gather(-1, experts))


def test_routing_is_float32_for_bfloat16() -> None:
    x, w = torch.randn(5, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    weights, experts = NF.route(x, w, top_k=2)
    wanted = (x.float() @ w.float().T).softmax(-1).topk(2)
    assert weights.dtype == torch.float32 and torch.equal(experts, wanted.indices)
    torch.testing.assert_close(weights, wanted.values)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("score", {"score": "softmx"}),
        ("jitter", {"score": "sparsemixer"}),
        ("jitter", {"jitter": 0.1}),
        ("top_k", {"score": "sparsemixer", "jitter": 0.1, "top_k": 3}),
        ("groups", {"groups": 3, "group_score": "max"}),
        ("top_groups", {"groups": 4, "top_groups": 5, "group_score": "max"}),
        ("top_k", {"groups": 4, "top_groups": 1, "group_score": "max", "top_k": 3}),
        ("group_score", {"groups": 4}),
        ("group_score", {"group_score": "max"}),
        ("groups", {"groups": 8, "top_groups": 8, "group_score": "top2_sum"}),
        ("top_k", {"top_k": 9}),
    ],
)
def test_options_that_do_not_go_together_are_refused(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(OperationError, match=field):
        route(LOGITS, **{"top_k": 2, **options})


GATED = {"act": "gelu"}
OPTIONS: dict[str, dict[str, Any]] = {
    "gated": GATED,
    "clamped": {"clamp_limit": 0.5, "clamp_alpha": 1.7, "up_shift": 1.0},
    "clamped, named activation": {"clamp_limit": 0.5},
    "plain": {"gated": False, "act": "relu"},
    "weight on the input": {"weight_on": "input"},
    "some of the experts": {"first_expert": 2},
}


def inputs(dtype: torch.dtype, gated: bool = True) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).to(dtype)

    rows = 10 if gated else 5
    experts = torch.stack([torch.randperm(6, generator=g)[:2] for _ in range(7)])
    weights = torch.rand(7, 2, generator=g)
    return random(7, 8), weights, experts, random(4, rows, 8), random(4, 8, 5), random(4, rows), random(4, 8)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_equals_the_reference_and_a_plain_loop(name: str, biased: bool, dtype: torch.dtype) -> None:
    options = OPTIONS[name]
    x, weights, experts, up, down, up_bias, down_bias = inputs(dtype, options.get("gated", True))
    biases: dict[str, Any] = {"up_bias_EF": up_bias, "down_bias_EH": down_bias} if biased else {}
    found = NF.moe_experts(x, weights, experts, up, down, **options, **biases)
    reference = NF.moe_experts.reference(x, weights, experts, up, down, **options, **biases)
    torch.testing.assert_close(found, reference, rtol=1e-5 if dtype == torch.float32 else 0.05, atol=1e-5)
    assert found.dtype == reference.dtype == dtype
    if dtype == torch.float32:
        wanted = torch.stack([one_token(t, x, weights, experts, up, down, biases, options) for t in range(len(x))])
        torch.testing.assert_close(reference, wanted, rtol=1e-4, atol=1e-4)


def one_token(
    t: int,
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    up: Tensor,
    down: Tensor,
    biases: dict[str, Tensor],
    options: dict[str, Any],
) -> Tensor:
    """The definition, a token and an expert at a time."""
    y = torch.zeros_like(x[t])
    for weight, e in zip(weights[t], (experts[t] - options.get("first_expert", 0)).tolist(), strict=True):
        if not 0 <= e < len(up):
            continue
        inner = up[e] @ (x[t] * weight if "weight_on" in options else x[t])
        inner = inner + biases["up_bias_EF"][e] if biases else inner
        if options.get("gated", True):
            gate, value = inner.chunk(2)
            limit = options.get("clamp_limit", torch.inf)
            gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
            alpha = options.get("clamp_alpha")
            act = NF.activation(options.get("act", "silu"))
            gate = act(gate) if alpha is None else gate * torch.sigmoid(alpha * gate)
            inner = gate * (value + options.get("up_shift", 0.0))
        else:
            inner = NF.activation(options["act"])(inner)
        out = down[e] @ inner
        out = out + biases["down_bias_EH"][e] if biases else out
        y = y + (out if "weight_on" in options else weight * out)
    return y


def test_the_kernel_is_one_operator_under_compile() -> None:
    x, weights, experts, up, down, *_ = inputs(torch.float32)

    def step(x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        return NF.moe_experts(x, weights, experts, up, down)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weights, experts), step(x, weights, experts))


def test_the_reference_is_one_graph_whatever_is_chosen() -> None:
    x, weights, experts, up, down, *_ = inputs(torch.float32)
    graph = torch.fx.experimental.proxy_tensor.make_fx(
        lambda x, w, e: NF.moe_experts.reference(x, w, e, up, down), tracing_mode="real"
    )(x, weights, experts)
    other = (experts + 1) % 6
    torch.testing.assert_close(graph(x, weights, other), NF.moe_experts.reference(x, weights, other, up, down))


def test_experts_refuse_what_does_not_go_together() -> None:
    x, weights, experts, up, down, *_ = inputs(torch.float32, gated=False)
    with pytest.raises(OperationError, match="gated"):
        NF.moe_experts(x, weights, experts, up, down, gated=False, clamp_limit=1.0)
    with pytest.raises(OperationError, match="weight_on"):
        NF.moe_experts(x, weights, experts, up, down, gated=False, weight_on="inputs")


@pytest.mark.parametrize(
    ("field", "router", "options"),
    [
        ("score", {"score": "sigmod"}, {}),
        ("weight_on", {"weight_on": "in"}, {}),
        ("group_score", {"groups": 2}, {}),
        ("jitter", {"score": "sparsemixer"}, {}),
        ("groups", {"groups": 3, "group_score": "max"}, {}),
        ("top_k", {}, {"top_k": 9}),
        ("top_k", {"groups": 4, "group_score": "max"}, {"top_k": 3}),
        ("clamp", {}, {"gated": False, "clamp": Clamp(1.0)}),
        ("shared_gate", {}, {"shared_gate": True}),
        ("weight_on", {"weight_on": "input"}, {"zero_experts": 2}),
        ("intermediate_size", {}, {"ranks": 3}),
    ],
)
def test_a_block_refuses_what_does_not_go_together(field: str, router: dict[str, Any], options: dict[str, Any]) -> None:
    ranks = options.pop("ranks", 1)
    with pytest.raises(ConfigError, match=field):
        config = RouterConfig(**router)
        arguments = {"experts": 8, "top_k": 2, "intermediate_size": 16, "act": "silu", **options}
        run_in_threads(ranks, lambda group: MoE(8, router=config, **arguments))
