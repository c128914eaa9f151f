"""Our side of a comparison: a model run one way, its blocks fed what is wanted, their outputs and operations kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.accuracy.ways import Way
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.step import KVView, Step

EMBED, FIRST_LAYER = "embed", "layers.0"


@dataclass(frozen=True)
class Event:
    """One operation inside the block that is looked at.

    Attributes:
        op: its name.
        args: by name; tensors are copies, ``pages`` is replaced by what the step may read of it (see ``context``).
        result: as it was returned.
        rows: row of each token of the step, -1 for padded ones.
        view: the step's view of the block's cache group, as it was handed to the model.
        context: for an operation on the cache: what its block table reads, [B, S, width].
        meant: the same through the block table that was handed to the model.
    """

    op: str
    args: Mapping[str, Any]
    result: Any
    rows: Tensor
    view: KVView | None = None
    context: Tensor | None = None
    meant: Tensor | None = None


@dataclass
class Observed:
    """One run on one rank. Rows are NaN where a block never ran.

    Attributes:
        total: R.
        logits: float32 [R, V]; None on further ranks, which have the same.
        outputs: block -> float32 [R, ...]; ``embed`` is what enters the first layer.
        order: blocks in the order of their first call.
        events: operations in the watched block, in order.
        replicas: ranks that hold the same key-value heads.
    """

    total: int
    logits: Tensor | None
    outputs: dict[str, Tensor] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def keep(self, name: str, rows: Tensor, output: Tensor) -> None:
        """Write a step's output of a block into its rows."""
        real = rows >= 0
        if name not in self.outputs:
            self.order.append(name)
            self.outputs[name] = torch.full((self.total, *output.shape[1:]), torch.nan, dtype=torch.float32)
        self.outputs[name][rows[real]] = output.detach()[real].float()


class Runner:
    """Runs a model one way.

    Args:
        model: loaded.
        prompts: token ids of each sequence.
        names: blocks whose outputs are kept.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], names: Collection[str]) -> None:
        self.model, self.prompts, self.names = model, prompts, list(names)
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self._rows = torch.empty(0)
        self._step: Step | None = None

    def run(
        self,
        way: Way,
        fed: Mapping[str, Tensor] | None = None,
        *,
        hidden: Tensor | None = None,
        watch: str | None = None,
        alone: str | None = None,
    ) -> Observed:
        """Run the prompts.

        Args:
            way: how.
            fed: block -> rows [R, H] that replace its input; padded tokens keep theirs.
            hidden: rows [R, H] of hidden states that the head is given in place of the model's.
            watch: block whose operations are kept.
            alone: run this fed layer by itself, without the model around it; there are no logits then.

        Returns:
            What was seen.
        """
        total = sum(len(ids) for ids in self.prompts)
        seen = Observed(total, self._no_logits(total) if alone is None and get_tp_group().rank == 0 else None)
        with ExitStack() as stack:
            for name in self.names:
                stack.enter_context(self._hooked(name, seen, (fed or {}).get(name)))
            if watch is not None:
                stack.enter_context(self._watched(watch, seen))
            stack.enter_context(torch.no_grad())
            for step, rows in way.steps(self.model, self.prompts):
                self._rows, self._step = rows, step
                real = rows >= 0
                if alone is not None:
                    assert fed is not None
                    # Padded tokens get the first token's hidden states; the hook puts in the same.
                    self.model.get_submodule(alone)(fed[alone][rows.clamp_min(0)].to(self.dtype), step)
                    continue
                out = self.model.forward(step)[real]
                given = out if hidden is None else hidden[rows[real]].to(out.dtype)
                logits = self.model.compute_logits(given)
                if seen.logits is not None:
                    seen.logits[rows[real]] = logits.float()
        return seen

    def _no_logits(self, total: int) -> Tensor:
        return torch.full((total, self.model.vocab_size), torch.nan, dtype=torch.float32)

    @contextmanager
    def _hooked(self, name: str, seen: Observed, fed: Tensor | None) -> Iterator[None]:
        called = [0, torch.empty(0)]

        def enter(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if name == FIRST_LAYER:
                seen.keep(EMBED, self._rows, args[0])
            if fed is None:
                return None
            x = args[0].clone()
            real = self._rows >= 0
            x[real] = fed[self._rows[real]].to(x.dtype).reshape(-1, *x.shape[1:])
            return (x, *args[1:])

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if called[1] is self._rows:
                # A block that is called twice in a step counts by its first call.
                return
            called[1] = self._rows
            seen.keep(name, self._rows, output)

        module = self.model.get_submodule(name)
        hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def _watched(self, name: str, seen: Observed) -> Iterator[None]:
        module = self.model.get_submodule(name)
        inside = threading.local()

        def observer(op: str, args: Mapping[str, Any], result: Any) -> None:
            if getattr(inside, "now", False):
                seen.events.append(self._event(module, op, args, result))

        def enter(module: nn.Module, args: Any) -> None:
            inside.now = True

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            inside.now = False

        hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]
        try:
            with NF.observe(observer):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _event(self, module: Any, op: str, args: Mapping[str, Any], result: Any) -> Event:
        assert self._step is not None
        kept = {key: value for key, value in args.items() if key != "pages"}
        kept = {key: value.clone() if _activation(key, value) else value for key, value in kept.items()}
        view = context = meant = None
        if "pages" in args:
            view = self._step.views[module.cache.group if getattr(module, "cache", None) else 0]
        if args.get("blocks_BM") is not None and view is not None and view.blocks_BM is not None:
            context = gathered(args["pages"], args["blocks_BM"])
            meant = gathered(args["pages"], view.blocks_BM)
        if isinstance(result, Tensor):
            result = result.detach().clone()
        return Event(op, kept, result, self._rows, view, context, meant)


def _activation(key: str, value: Any) -> bool:
    """Weights are not copied; they end in a letter for a feature, activations in one of the step's dimensions."""
    return isinstance(value, Tensor) and ("_T" in key or "_B" in key or key == "x")


def gathered(pages: Tensor, blocks_BM: Tensor) -> Tensor:
    """What a block table reads, [B, S, width]."""
    rows, blocks = blocks_BM.shape
    return torch.index_select(pages, 0, blocks_BM.reshape(-1)).view(rows, blocks * pages.shape[1], -1)


Observer = Callable[[str, Mapping[str, Any], Any], None]
