"""Feeding a reference tensor at a module, in place of what it was given or gave, and going on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vllm_neuron.errors import ConfigError, ShapeError
from vllm_neuron.snapshot.capture import call_tensors, hidden_name
from vllm_neuron.snapshot.patterns import match_modules

At = Literal["input", "output"]


@contextmanager
def replace(
    model: nn.Module, tensors: Mapping[str, Tensor | Sequence[Tensor]], *, at: At = "output"
) -> Iterator[dict[str, int]]:
    """Put given tensors in place of modules' outputs, or of their hidden states, while the block lasts.

    A tensor is cast to the dtype that it replaces. It may have fewer rows (padding behind stays), and leading
    dimensions of size 1 more or less: ``[1, T, H]`` of transformers goes where ``[T, H]`` was.

    Args:
        model: a model of this project or of transformers.
        tensors: module name -> the tensor for every call, or one tensor for each call in turn; calls after the last are
            left as they are.
        at: ``output`` (the first tensor of a tuple), or ``input`` (the hidden states among the arguments).

    Yields:
        Module name -> calls that were replaced so far.

    Raises:
        ConfigError: a name that is no module's.
        ShapeError: when the module is called: a tensor that does not fit there.
    """
    counts = dict.fromkeys(tensors, 0)

    def next_tensor(name: str) -> Tensor | None:
        given = tensors[name]
        found = given if isinstance(given, Tensor) else (given[counts[name]] if counts[name] < len(given) else None)
        counts[name] += found is not None
        return found

    handles = []
    try:
        for name in tensors:
            module = match_modules(model, [name], "replace")[name]
            handles.append(install_replacement(module, name, partial(next_tensor, name), at=at))
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def install_replacement(module: nn.Module, name: str, source: Callable[[], Tensor | None], *, at: At) -> Any:
    """Hook one module; ``source`` gives the tensor of each call, or None to leave it. Returns the hook's handle."""

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        tensor = source()
        if tensor is None:
            return None
        if isinstance(output, Tensor):
            return fitted(tensor, output, f"{name}: output")
        return type(output)((fitted(tensor, output[0], f"{name}: output"), *output[1:]))

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = source()
        if tensor is None:
            return None
        given = call_tensors(args, kwargs)
        if not given:
            raise ConfigError("replace", name, "a module that is called with a tensor", "Replace its output instead.")
        key = hidden_name(given)
        new = fitted(tensor, given[key], f"{name}: input {key}")
        if key in kwargs:
            return args, {**kwargs, key: new}
        if not key.isdigit():
            raise ConfigError("replace", f"{name}: {key}", "hidden states that are an argument of their own")
        return (*args[: int(key)], new, *args[int(key) + 1 :]), kwargs

    if at == "output":
        return module.register_forward_hook(after)
    return module.register_forward_pre_hook(before, with_kwargs=True)


def fitted(tensor: Tensor, there: Tensor, name: str) -> Tensor:
    """``tensor`` in the shape, dtype and device of the one that it replaces; rows that it lacks are kept.

    Raises:
        ShapeError: it has more rows, or rows of another shape.
    """
    new = tensor.detach().to(device=there.device, dtype=there.dtype)
    while new.dim() > there.dim() and new.shape[0] == 1:
        new = new[0]
    while new.dim() < there.dim() and there.shape[there.dim() - new.dim() - 1] == 1:
        new = new[None]
    if new.shape == there.shape:
        return new.clone()
    if new.dim() != there.dim() or new.shape[1:] != there.shape[1:] or new.shape[0] > there.shape[0]:
        raise ShapeError(f"replacement of {name}", tuple(tensor.shape), f"{tuple(there.shape)}, or fewer rows")
    return torch.cat((new, there[new.shape[0] :]))
