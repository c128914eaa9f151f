"""The reference's side of a comparison: what its modules give for some prompts, or for other hidden states.

Rows count the tokens of all prompts, one prompt below the other. Only whole layers are captured for good; what is
inside a layer is captured by calling that layer once more, so one layer's tensors are held at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from vllm_neuron.accuracy.calls import Call, Capture, HFModel, recorded
from vllm_neuron.accuracy.compare import rows
from vllm_neuron.accuracy.hf import AttentionCall, attention_calls
from vllm_neuron.accuracy.judge import row_errors
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.errors import UnsupportedError

# Relative size of the rounding errors that are laid on a module's input to see what it makes of them.
ROUNDING = 2.0**-22
# A token whose output moves by this share because of them stands at a tie of a router.
TIE = 1e-3


@dataclass(frozen=True)
class Inside:
    """One call of one module for one prompt, and all that happened in it.

    Attributes:
        output: [T, ...].
        calls: modules below it, by full name -> their calls.
        attention: what its attention was given and gave; None when it has none, or computes it itself.
    """

    output: Tensor
    calls: dict[str, list[Call]]
    attention: AttentionCall | None

    def output_of(self, name: str) -> Tensor | None:
        """[T, ...] of a module below that was called once."""
        calls = self.calls.get(name, [])
        return rows(calls[0].output) if len(calls) == 1 else None

    def input_of(self, name: str) -> Tensor | None:
        """[T, ...] hidden states that a module below was given, if it was called once."""
        calls = self.calls.get(name, [])
        hidden = calls[0].hidden() if len(calls) == 1 else None
        return None if hidden is None else rows(hidden)


class Gold:
    """A reference on some prompts.

    Args:
        hf: the model.
        prompts: token ids, one sequence each; none empty.
        pairs: which of its modules are asked for.

    Raises:
        UnsupportedError: none of our layers has a module of its own there that takes hidden states.
    """

    def __init__(self, hf: HFModel, prompts: Sequence[Sequence[int]], pairs: Sequence[Pair]) -> None:
        self.hf, self.prompts = hf, [list(ids) for ids in prompts]
        self.dtype: torch.dtype = next(hf.model.parameters()).dtype
        outer = [pair.theirs for pair in pairs if pair.whole or pair.layer is None]
        self.captures = [Capture(hf, ids, outer) for ids in self.prompts]
        usable = [p for p in pairs if p.whole and all(c.call(p.theirs) is not None for c in self.captures)]
        if not usable:
            raise UnsupportedError(
                "reference", type(hf.model).__name__, "a model whose layers are modules that take hidden states"
            )
        self._around = {pair.layer: pair for pair in usable}
        self._inner: tuple[int | None, list[dict[str, list[Call]]]] = (None, [])

    @cached_property
    def logits(self) -> Tensor:
        """float32 [R, V]."""
        found = torch.cat([capture.logits for capture in self.captures])
        # They are large: the captures keep no copies of their own.
        for capture, part in zip(self.captures, self.per_prompt(found), strict=True):
            capture.logits = part
        return found

    @cached_property
    def edges(self) -> list[int]:
        """Rows where the prompts begin, and the number of all rows."""
        edges = [0]
        for ids in self.prompts:
            edges.append(edges[-1] + len(ids))
        return edges

    def position(self, row: int) -> int:
        """Position of a row in its prompt."""
        return row - max(edge for edge in self.edges if edge <= row)

    def per_prompt(self, values: Tensor) -> list[Tensor]:
        """Rows [R, ...] cut into those of each prompt."""
        return [values[start:stop] for start, stop in pairwise(self.edges)]

    def calls(self, pair: Pair) -> list[Call] | None:
        """The call of a pair's module for each prompt; None when it was not called just once, with hidden states."""
        found = [self._call(pair, k) for k in range(len(self.prompts))]
        return [call for call in found if call is not None] if all(found) else None

    def _call(self, pair: Pair, prompt: int) -> Call | None:
        if pair.whole or pair.layer is None:
            return self.captures[prompt].call(pair.theirs)
        if pair.layer not in self._around:
            return None
        if self._inner[0] != pair.layer:
            self._inner = (pair.layer, self._open(pair.layer))
        calls = self._inner[1][prompt].get(pair.theirs, [])
        hidden = calls[0].hidden() if len(calls) == 1 else None
        if hidden is None or not len(rows(hidden)) == len(rows(calls[0].output)) == len(self.prompts[prompt]):
            return None
        return calls[0]

    def _open(self, layer: int) -> list[dict[str, list[Call]]]:
        """The calls inside a layer, prompt by prompt."""
        name = self._around[layer].theirs
        module = self.hf.model.get_submodule(name)
        below = {f"{name}.{each}": m for each, m in module.named_modules() if each}
        found = []
        for capture in self.captures:
            calls: dict[str, list[Call]] = {}
            call = capture.call(name)
            assert call is not None
            with recorded(below, calls):
                call.on(module, _hidden(call))
            found.append(calls)
        return found

    def hidden(self, pair: Pair) -> Tensor | None:
        """float32 [R, H] that the pair's module was given."""
        calls = self.calls(pair)
        return None if calls is None else torch.cat([rows(_hidden(call)) for call in calls])

    def output(self, pair: Pair) -> Tensor | None:
        """float32 [R, H] that the pair's module gave."""
        calls = self.calls(pair)
        return None if calls is None else torch.cat([rows(call.output) for call in calls])

    def entered(self) -> Tensor:
        """float32 [R, H] that enters the first layer."""
        found = self.hidden(self._around[min(i for i in self._around if i is not None)])
        assert found is not None
        return found

    def at(self, pair: Pair, hidden_RH: Tensor) -> Tensor:
        """float32 [R, ...]: what the pair's module gives for other hidden states, all else as it came."""
        return torch.cat([each.output for each in self.inside(pair, hidden_RH, deep=False)])

    def inside(self, pair: Pair, hidden_RH: Tensor, *, deep: bool = True) -> list[Inside]:
        """The same, prompt by prompt, with what happens inside."""
        calls = self.calls(pair)
        assert calls is not None
        module: nn.Module = self.hf.model.get_submodule(pair.theirs)
        below = {f"{pair.theirs}.{each}": m for each, m in module.named_modules() if each} if deep else {}
        found = []
        for call, hidden in zip(calls, self.per_prompt(hidden_RH), strict=True):
            seen: dict[str, list[Call]] = {}
            was = _hidden(call)
            with recorded(below, seen), attention_calls(module) as attention:
                output = call.on(module, hidden.to(was.dtype).reshape(was.shape))
            found.append(Inside(rows(output), seen, attention[0] if len(attention) == 1 else None))
        return found

    def moved(self, pair: Pair, hidden_RH: Tensor, size: float = ROUNDING, draws: int = 1) -> Tensor:
        """[R]: relative change of the module's output when rounding errors are laid on its input; the largest of some.

        Args:
            pair, hidden_RH: which module, for which input.
            size: relative size of the errors.
            draws: how often they are drawn; more find more ties.
        """
        generator = torch.Generator().manual_seed(0)
        plain, found = self.at(pair, hidden_RH), torch.zeros(len(hidden_RH))
        for _ in range(draws):
            shaken = self.at(pair, hidden_RH * (1 + size * torch.randn(hidden_RH.shape, generator=generator)))
            found = torch.maximum(found, row_errors(shaken, plain))
        return found

    @cached_property
    def growth(self) -> dict[str, Tensor]:
        """Module -> [R]: relative change of its output in a whole run when rounding errors enter every layer.

        ``""`` has that of the logits.
        """
        names = list(dict.fromkeys(pair.theirs for pair in self._around.values()))
        generator = torch.Generator().manual_seed(0)
        hooks = [
            self.hf.model.get_submodule(name).register_forward_pre_hook(_shaken(generator), with_kwargs=True)
            for name in names
        ]
        try:
            shaken = [Capture(self.hf, ids, list(self.captures[0].modules)) for ids in self.prompts]
        finally:
            for hook in hooks:
                hook.remove()
        found = {"": torch.cat([row_errors(s.logits, c.logits) for s, c in zip(shaken, self.captures, strict=True)])}
        for name in self.captures[0].modules:
            calls = [(s.call(name), c.call(name)) for s, c in zip(shaken, self.captures, strict=True)]
            both = [(rows(s.output), rows(c.output)) for s, c in calls if s is not None and c is not None]
            if len(both) == len(self.prompts):
                found[name] = torch.cat([row_errors(s, c) for s, c in both])
        return found


def _shaken(generator: torch.Generator) -> Any:
    """A hook that lays rounding errors on the hidden states that a module is given."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        hidden = Call(args, kwargs, None).hidden()
        assert hidden is not None
        noisy = hidden * (1 + ROUNDING * torch.randn(hidden.shape, generator=generator).to(hidden.dtype))
        return (
            tuple(noisy if a is hidden else a for a in args),
            {key: noisy if value is hidden else value for key, value in kwargs.items()},
        )

    return hook


def _hidden(call: Call) -> Tensor:
    hidden = call.hidden()
    assert hidden is not None
    return hidden
