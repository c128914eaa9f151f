"""Where a run of the whole model leaves the reference first: block by block, in the order of the forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onboard.prove.blocks import ENTERS
from onboard.prove.proof import BAR, Divergence
from onboard.prove.subject import Runner, Way
from vllm_neuron.accuracy.calls import Capture
from vllm_neuron.accuracy.compare import rel_err
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.errors import NonFiniteError, ShapeError


class Walk:
    """Outputs of our blocks in a free run, piece by piece, to find where it leaves the reference first."""

    def __init__(self, model: Any, pairs: Sequence[Pair]) -> None:
        self.model, self.pairs = model, pairs
        self.outputs: dict[str, list[Tensor]] = {}

    @contextmanager
    def _recording(self, runner: Runner) -> Iterator[None]:
        def keep(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                self._keep(name, output, runner)

            return hook

        def entered(module: nn.Module, args: Any) -> None:
            self._keep("embed", args[0], runner)

        hooks = [self.model.get_submodule(p.ours).register_forward_hook(keep(p.ours)) for p in self.pairs]
        hooks.append(self.model.layers[0].register_forward_pre_hook(entered))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _keep(self, name: str, x: Tensor, runner: Runner) -> None:
        """The real tokens of a piece; a block that is called twice in it counts by its first call."""
        pieces = self.outputs.setdefault(name, [])
        if len(pieces) == len(runner.parts):
            pieces.append(x[: runner.count].detach().clone())

    def first(self, way: Way, capture: Capture, skip: set[str]) -> Divergence | None:
        """Run the tokens one way and name the first block whose output is over the bar.

        Args:
            way: how the tokens are run.
            capture: what the reference's modules gave.
            skip: blocks whose counterparts end elsewhere.
        """
        runner = Runner(self.model, len(capture.ids))
        with self._recording(runner):
            way(runner, capture.ids)
        pairs = {pair.ours: pair for pair in self.pairs}
        first_layer = next((pair for pair in self.pairs if pair.whole), None)
        for name, parts in self.outputs.items():
            if name == "embed" and first_layer is not None:
                call = capture.call(first_layer.theirs)
                expected, title = (call.hidden() if call else None), ENTERS + first_layer.theirs
                layer = None
            elif name in pairs and name not in skip:
                call = capture.call(pairs[name].theirs)
                expected, title = (call.output if call else None), capture.title(pairs[name].theirs)
                layer = pairs[name].layer
            else:
                continue
            if expected is None:
                continue
            error = _error(torch.cat(parts), expected, name)
            if error > BAR:
                return Divergence(layer, name, title, error)
        return None


def _error(found: Tensor, expected: Tensor, what: str) -> float:
    try:
        return rel_err(found, expected, what)
    except (NonFiniteError, ShapeError):
        return float("inf")
