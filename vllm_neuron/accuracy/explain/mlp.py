"""Feed-forward blocks: which of their products is wrong; in a mixture, the router or the experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import vllm_neuron.functional as NF
from vllm_neuron.accuracy.explain.scene import UNKNOWN, Part, Scene, constant
from vllm_neuron.accuracy.gold import Inside
from vllm_neuron.accuracy.observed import Event


def explain_mlp(scene: Scene) -> Part:
    """The first part of a plain or gated MLP that is not the reference's."""
    events = scene.events("mlp")
    if not all(events):
        return UNKNOWN
    down = scene.modules_of("down.weight")
    part = _widened(scene, events)
    if part is not None or len(down) != 1:
        return part or UNKNOWN
    part = _narrowed(scene, events, down[0]) or _summed(scene, "mlp", "activation")
    if part.name == "activation" and _swapped(scene, events):
        return Part("gate_up", "gate and up are taken for one another: swapped, they give the reference", part.row)
    return part


def _swapped(scene: Scene, events: Sequence[Sequence[Event]]) -> bool:
    """The block's own weights give the reference when gate and up change places."""

    def other(event: Event) -> Tensor:
        args = dict(event.args)
        for name in ("gate_up_HF", "gate_up_bias_F"):
            if args[name] is not None:
                args[name] = args[name].roll(args[name].shape[-1] // 2, -1)
        return NF.mlp.reference(**args)

    if not all(event.args["gated"] and isinstance(event.args["gate_up_HF"], Tensor) for run in events for event in run):
        return False
    finding = scene.compare(_total(scene, events, other), scene.theirs(lambda inside: inside.output), "swapped")
    return finding is not None and finding.ok


def _linear(x: Tensor, matrix: NF.Matrix, bias: Tensor | None) -> Tensor:
    """A product of its own, whatever kernel computed the block's."""
    return NF.linear.reference(x, matrix, bias)


def _widened(scene: Scene, events: Sequence[Sequence[Event]]) -> Part | None:
    """Gate and up as the block's own weights give them."""
    gated = events[0][0].args["gated"]
    parts = 2 if gated else 1
    names = scene.modules_of("gate_up.weight" if gated else "up.weight")
    theirs = scene.outputs_of(names)
    if theirs is None:
        return None

    def product(event: Event) -> Tensor:
        args = event.args
        wide = _linear(args["x_TH"], args["gate_up_HF"], args["gate_up_bias_F"])
        return wide.unflatten(-1, (parts, -1)).transpose(1, 2)

    ours = scene.rows(events, product)
    if ours is None or ours[0].numel() != theirs[0].shape[1]:
        return None
    ours = ours.transpose(1, 2)
    expected, baseline = (None if x is None else x.unflatten(-1, (parts, -1)) for x in theirs)
    assert expected is not None
    finding = scene.judge(ours, expected, baseline, "gate and up")
    if finding.ok:
        return None
    if constant((ours - expected).flatten(1)):
        return Part("gate_up bias", "gate and up differ by one vector: a bias", finding.row)
    if gated and scene.judge(ours.flip(1), expected, baseline, "up and gate").ok:
        return Part("gate_up", "gate and up are swapped", finding.row)
    return Part("gate_up", f"the first products differ: {finding.words}", finding.row)


def _narrowed(scene: Scene, events: Sequence[Sequence[Event]], down: str) -> Part | None:
    """The down projection as the block's own weights give it, from the reference's own product."""
    inner = scene.theirs(lambda inside: inside.input_of(down))
    theirs = scene.outputs_of([down])
    if inner is None or theirs is None:
        return None
    parts = []
    for rank, run in enumerate(events):
        matrix, bias = run[0].args["down_IH"], scene.modules[rank].down.bias if rank == 0 else None
        width = inner[0].shape[1] // len(events)
        share = inner[0][:, rank * width : (rank + 1) * width]
        parts.append(_linear(share.to(scene.modules[0].down.weight.dtype), matrix, bias).float())
    finding = scene.judge(torch.stack(parts).sum(0), theirs[0], theirs[1], "down projection")
    if finding.ok:
        return None
    return Part("down", f"the down projection of the reference's product differs: {finding.words}", finding.row)


def _total(scene: Scene, events: Sequence[Sequence[Event]], pick: Callable[[Event], Tensor]) -> Tensor | None:
    """The sum of the ranks' parts, with the bias that is added behind it."""
    total = scene.rows(events, pick, join="sum")
    down = getattr(scene.module, "down", None)
    if total is not None and len(scene.modules) > 1 and down is not None and down.bias is not None:
        total = total + down.bias.float()
    return total


def _summed(scene: Scene, op: str, otherwise: str) -> Part:
    """The sum of the ranks' parts, then what the block makes of it."""
    total = _total(scene, scene.events(op), lambda event: event.result)
    finding = scene.compare(total, scene.theirs(lambda inside: inside.output), "sum of the ranks")
    if finding is None:
        return UNKNOWN
    if not finding.ok:
        return Part(
            otherwise, f"the projections agree, the product between them does not: {finding.words}", finding.row
        )
    if len(scene.modules) > 1:
        return Part("all_reduce", "the ranks' parts sum up to the reference, the block gives something else", 0)
    return Part("after down", "the products agree, what the block gives does not", 0)


def explain_moe(scene: Scene) -> Part:
    """The router or the experts of a mixture."""
    theirs = scene.theirs(_choice)
    experts = _experts(scene)
    if theirs is None:
        return UNKNOWN
    count = theirs[0].shape[1]

    def chosen(event: Event) -> Tensor:
        return dense(event.args["weights_TK"], event.args["experts_TK"], count)

    ours = scene.rows(scene.events("moe_experts"), chosen, join="first")
    finding = scene.compare(ours, theirs, "weights of the experts")
    if finding is not None and not finding.ok:
        assert ours is not None
        same = bool(((ours > 0) == (theirs[0] > 0)).all(-1)[finding.row or 0])
        said = "the same experts are chosen, their weights differ" if same else "other experts are chosen"
        return Part("router", f"{said}{scene.where(finding.row)}: {finding.words}", finding.row)
    if experts is not None:
        total = scene.rows(scene.events("moe_experts"), lambda event: event.result, join="sum")
        finding = scene.compare(total, scene.outputs_of([experts]), "output of the experts")
        if finding is not None and not finding.ok:
            return Part("experts", f"the choice agrees, what the experts give does not: {finding.words}", finding.row)
        if scene.module.shared is not None:
            return Part("shared", "router and experts agree, the block does not: its shared expert", 0)
    return _summed(scene, "moe_experts", "experts")


def _choice(inside: Inside) -> Tensor | None:
    """Dense weights [T, E] of the experts that a module inside was given: an int and a float tensor of one shape."""
    found = _experts_call(inside)
    if found is None:
        return None
    indices, weights, count = found
    return dense(weights, indices, count)


def _experts(scene: Scene) -> str | None:
    """Name of the module that is given the choice."""
    for name, calls in scene.expected[0].calls.items():
        if len(calls) == 1 and _pair_of(calls[0].args, calls[0].kwargs) is not None:
            return name
    return None


def _experts_call(inside: Inside) -> tuple[Tensor, Tensor, int] | None:
    for calls in inside.calls.values():
        found = _pair_of(calls[0].args, calls[0].kwargs) if len(calls) == 1 else None
        if found is not None:
            return (*found, _experts_count(inside, found[0]))
    return None


def _experts_count(inside: Inside, indices: Tensor) -> int:
    """E: the width of the router's logits, which is what some module before the experts gave."""
    rows = indices.shape[0]
    for calls in inside.calls.values():
        output = calls[0].output
        if output.dim() == 2 and output.shape[0] == rows and output.shape[1] > int(indices.max()):
            return int(output.shape[1])
    return int(indices.max()) + 1


def _pair_of(args: Sequence[object], kwargs: dict[str, object]) -> tuple[Tensor, Tensor] | None:
    """Chosen experts [T, K] and their weights [T, K] among a call's arguments."""
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim() == 2]
    chosen = [a for a in tensors if a.dtype in (torch.int64, torch.int32)]
    weights = [a for a in tensors if a.is_floating_point() and chosen and a.shape == chosen[0].shape]
    return (chosen[0], weights[0]) if len(chosen) == 1 and len(weights) == 1 else None


def dense(weights_TK: Tensor, experts_TK: Tensor, count: int) -> Tensor:
    """float32 [T, E]: the weight of each expert, 0 where it is not chosen."""
    found = torch.zeros(len(weights_TK), count)
    return found.scatter_add_(1, experts_TK.long(), weights_TK.float())
