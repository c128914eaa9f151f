"""What modules of a Hugging Face model were given and gave in one forward pass, and how one is called once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vllm_neuron.accuracy.compare import rows

# Arguments by which a Hugging Face module would write to a cache when it is called again.
CACHES = ("past_key_values", "past_key_value", "layer_past", "cache_params", "use_cache")


class HFModel(Protocol):
    """A causal LM of transformers in eval mode with eager attention, and where its checkpoint's tensors went."""

    @property
    def model(self) -> Any:
        """The causal LM."""
        ...

    @property
    def origin(self) -> Mapping[str, Any]:
        """Key of the checkpoint -> the model's own parameter, or parameters, behind it."""
        ...

    def logits(self, ids: Any) -> Tensor:
        """[T, V] without a cache."""
        ...


@dataclass
class Call:
    """One call of a Hugging Face module.

    Attributes:
        args, kwargs: as they came.
        output: as it went; the first element when it is a tuple.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def hidden(self) -> Tensor | None:
        """The hidden states among the arguments: the one named so, else the first float tensor of two dimensions."""
        named = self.kwargs.get("hidden_states")
        if isinstance(named, Tensor):
            return named
        return next((a for a in (*self.args, *self.kwargs.values()) if _floats(a)), None)

    def again(self, module: nn.Module, scale: float) -> Tensor:
        """What the module gives when the hidden states are ``scale`` times as large; no cache is touched."""
        hidden = self.hidden()
        assert hidden is not None
        return self.on(module, hidden * scale)

    def on(self, module: nn.Module, hidden: Tensor) -> Tensor:
        """What the module gives for other hidden states of the same shape, all else as it came; no cache is touched."""
        kept = self.hidden()
        args = tuple(hidden if a is kept else a for a in self.args)
        kwargs = {name: hidden if value is kept else value for name, value in self.kwargs.items()}
        kwargs |= {name: None for name in CACHES if name in kwargs}
        with torch.no_grad():
            return first(module(*args, **kwargs))


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2


def first(output: Any) -> Any:
    """The tensor of an output: itself, or the first of a tuple."""
    return output[0] if isinstance(output, tuple | list) else output


@contextmanager
def recorded(modules: Mapping[str, nn.Module], calls: dict[str, list[Call]]) -> Iterator[None]:
    """Copy every call of some modules into ``calls`` inside a ``with`` block."""
    hooks = [_record(name, module, calls) for name, module in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _record(name: str, module: nn.Module, calls: dict[str, list[Call]]) -> Any:
    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        output = first(output)
        if isinstance(output, Tensor):
            # One tensor that is passed twice stays one: queries, keys and values of a block may all be x.
            memo: dict[int, Any] = {}
            copies = (
                [memo.setdefault(id(a), _copy(a)) for a in args],
                {key: memo.setdefault(id(value), _copy(value)) for key, value in kwargs.items()},
            )
            calls.setdefault(name, []).append(Call(tuple(copies[0]), copies[1], output.detach().clone()))

    return module.register_forward_hook(keep, with_kwargs=True)


class Capture:
    """The calls of some modules of a reference in one forward pass.

    Attributes:
        ids: the tokens.
        logits: float32 [T, V].
        calls: module name -> its calls, in the order of the pass.
    """

    def __init__(self, reference: HFModel, ids: Sequence[int], names: Sequence[str]) -> None:
        self.ids = list(ids)
        self.calls: dict[str, list[Call]] = {}
        self.modules = {name: reference.model.get_submodule(name) for name in names}
        with recorded(self.modules, self.calls), torch.no_grad():
            self.logits = rows(reference.logits(torch.tensor(self.ids)))

    def call(self, name: str) -> Call | None:
        """The module's call, when it was called once, for every token, with hidden states."""
        calls = self.calls.get(name, [])
        if len(calls) != 1:
            return None
        hidden = calls[0].hidden()
        fits = hidden is not None and len(rows(hidden)) == len(rows(calls[0].output)) == len(self.ids)
        return calls[0] if fits else None

    def title(self, name: str) -> str:
        """``LlamaAttention model.layers.0.self_attn``; text that names no module stays as it is."""
        if name not in self.modules:
            return name
        return f"{type(self.modules[name]).__name__} {name}"


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
