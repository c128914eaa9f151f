"""Block by block: each of our blocks is fed what its Hugging Face counterpart was fed, and their outputs compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from onboard.prove.proof import BAR
from onboard.prove.subject import Runner
from vllm_neuron.accuracy.calls import Capture
from vllm_neuron.accuracy.compare import rel_err, rows
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.errors import NonFiniteError, ShapeError
from vllm_neuron.nn import MoE
from vllm_neuron.step import Phase

# Hidden states as they came, so small that an eps shows, and so large that gelu and its tanh form part.
PLAIN, TINY, LOUD = 1.0, 1e-3, 6.0
# A router's scores saturate when loud, and equal scores may be chosen in either order.
ROUTED = 2.0
# Blocks that end elsewhere in the two models (a residual inside, say) differ by far more than rounding or an eps does.
ELSEWHERE = 1e-2
FIRST_LAYER = "layers.0"
ENTERS = "what enters "


@dataclass
class Compared:
    """The errors of one pair, by the scale of what it was fed.

    Attributes:
        pair: the pair.
        errors: scale -> relative error.
        problem: what the package raised in place of a number.
    """

    pair: Pair
    errors: dict[float, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def worst(self) -> float:
        """The largest error."""
        return max(self.errors.values(), default=0.0)

    @property
    def failed(self) -> bool:
        """Over the bar at any scale, or no number at all."""
        return bool(self.problem) or self.worst > BAR


def feed(model: Any, capture: Capture, pairs: Sequence[Pair], scale: float) -> tuple[dict[str, Tensor], str]:
    """Run the model once with the input of each paired block replaced by its counterpart's, ``scale`` times as large.

    Where an open feature ends the run, the blocks that it did not reach are called by themselves.

    Returns:
        Block -> its output [T, ...] (``embed`` -> what enters the first layer), and the ``NotImplementedError`` that
        ended the run, if any.
    """
    given = {pair.ours: rows(_hidden(capture, pair)) * scale for pair in pairs}
    outputs: dict[str, Tensor] = {}

    def enter(name: str) -> Any:
        def replace(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name == FIRST_LAYER:
                outputs["embed"] = args[0].detach().clone()
            return (given[name].to(args[0].dtype).reshape(args[0].shape), *args[1:])

        return replace

    def leave(name: str) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            outputs.setdefault(name, output.detach().clone())

        return keep

    hooks = []
    for pair in pairs:
        module = model.get_submodule(pair.ours)
        hooks += [module.register_forward_pre_hook(enter(pair.ours)), module.register_forward_hook(leave(pair.ours))]
    runner = Runner(model, len(capture.ids))
    missing = ""
    try:
        runner.prefill(capture.ids)
    except NotImplementedError as error:
        missing = str(error) or "NotImplementedError"
    finally:
        for hook in hooks:
            hook.remove()
    if missing:
        for pair in pairs:
            if pair.ours not in outputs:
                _alone(model.get_submodule(pair.ours), given[pair.ours], runner, capture, outputs, pair.ours)
    return outputs, missing


def _alone(
    block: nn.Module, x_TH: Tensor, runner: Runner, capture: Capture, outputs: dict[str, Tensor], name: str
) -> None:
    """Call one block without its model; one that is open itself, or takes more than hidden states, stays out."""
    wanted = [p for p in inspect.signature(block.forward).parameters.values() if p.default is p.empty]
    step = runner.session.step(capture.ids, Phase.PREFILL)
    if [p.name for p in wanted[1:]] not in ([], ["step"]):
        return
    try:
        with torch.no_grad():
            outputs[name] = block(x_TH, step) if len(wanted) > 1 else block(x_TH)
    except NotImplementedError:
        return


def _hidden(capture: Capture, pair: Pair) -> Tensor:
    call = capture.call(pair.theirs)
    hidden = call.hidden() if call else None
    assert hidden is not None
    return hidden


def compare_blocks(model: Any, capture: Capture, pairs: Sequence[Pair]) -> tuple[list[Compared], str]:
    """Compare whole layers and inner blocks; a pair whose counterpart was not called once is left out.

    Returns:
        The pairs with their errors, and the ``NotImplementedError`` that kept blocks from running, if any.
    """
    usable = [pair for pair in pairs if capture.call(pair.theirs) is not None]
    found = {pair.ours: Compared(pair) for pair in usable}
    missing = ""
    # A layer must run with its own inner blocks' outputs, so layers and inner blocks take turns.
    for group in ([p for p in usable if p.whole], [p for p in usable if not p.whole]):
        for scale in (PLAIN, TINY, ROUTED, LOUD):
            chosen = [pair for pair in group if scale in scales_of(model.get_submodule(pair.ours))]
            if not chosen:
                continue
            outputs, stopped = feed(model, capture, chosen, scale)
            missing = missing or stopped
            for pair in chosen:
                if pair.ours in outputs:
                    _measure(found[pair.ours], outputs[pair.ours], capture, scale)
            if scale == PLAIN and "embed" in outputs:
                found["embed"] = _embedding(chosen, outputs["embed"], capture)
    return [each for each in found.values() if each.errors or each.problem], missing


def scales_of(block: nn.Module) -> tuple[float, ...]:
    """The scales of the input that a block is compared at.

    Scores of an attention grow with the square of its input, and their rounding with them: it gets nothing loud.
    """
    inner = list(block.modules())
    if any(hasattr(module, "bind") for module in inner):
        return (PLAIN, TINY)
    if any(isinstance(module, MoE) for module in inner):
        # Small inputs give a router scores that are nearly the same.
        return (PLAIN, ROUTED)
    return (PLAIN, TINY, LOUD)


def _measure(compared: Compared, output: Tensor, capture: Capture, scale: float) -> None:
    pair = compared.pair
    call = capture.call(pair.theirs)
    assert call is not None
    expected = call.output if scale == PLAIN else call.again(capture.modules[pair.theirs], scale)
    try:
        compared.errors[scale] = rel_err(output, expected, f"output of {pair.ours}")
    except (NonFiniteError, ShapeError) as error:
        compared.problem = str(error)


def _embedding(chosen: Sequence[Pair], output: Tensor, capture: Capture) -> Compared:
    """What enters our first layer against what enters the reference's."""
    first = next(pair for pair in chosen if pair.ours == FIRST_LAYER)
    compared = Compared(Pair("embed", ENTERS + first.theirs))
    try:
        compared.errors[PLAIN] = rel_err(output, _hidden(capture, first), "what enters the first layer")
    except (NonFiniteError, ShapeError) as error:
        compared.problem = str(error)
    return compared


def compare_head(model: Any, capture: Capture, name: str) -> Compared:
    """Logits of the reference's last hidden states against the reference's logits, soft cap and multiplier included."""
    compared = Compared(Pair("head", name))
    call = capture.call(name)
    hidden = call.hidden() if call else None
    assert hidden is not None
    try:
        with torch.no_grad():
            found = model.compute_logits(rows(hidden))
        compared.errors[PLAIN] = rel_err(found, capture.logits, "logits of the head")
    except (NonFiniteError, ShapeError) as error:
        compared.problem = str(error)
    return compared


def end_elsewhere(compared: Sequence[Compared], whole_passes: bool) -> set[str]:
    """Inner blocks whose counterpart ends elsewhere: grossly different, though their layer and the model agree.

    A wrong block can't hide here: the layer that holds it, or the model's logits, would be wrong too. The head's
    counterpart may also begin elsewhere (hidden states scaled in front of it).
    """
    layers = {each.pair.layer: each for each in compared if each.pair.whole}
    return {
        each.pair.ours
        for each in compared
        if not each.pair.whole
        and whole_passes
        and (each.problem or each.errors.get(PLAIN, 0.0) > ELSEWHERE)
        and (each.pair.ours == "head" or (each.pair.layer in layers and not layers[each.pair.layer].failed))
    }


def grouped(compared: Sequence[Compared]) -> Mapping[str, list[Compared]]:
    """The pairs by their place in a layer."""
    groups: dict[str, list[Compared]] = {}
    for each in compared:
        groups.setdefault(each.pair.pattern, []).append(each)
    return groups
