"""How faults and harmless changes are planted: another kernel, another step, another weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

import vllm_neuron.functional as NF
from vllm_neuron.functional.operation import YES, Kernel
from vllm_neuron.step import KVView, Phase, Step


@contextmanager
def kernels(**runs: Callable[..., Any]) -> Iterator[None]:
    """Each named operation runs a kernel in place of its own; it gets the operation's reference first."""
    before = {name: NF.get(name).kernels for name in runs}
    for name, run in runs.items():
        operation = NF.get(name)

        def call(*args: Any, run: Any = run, reference: Any = operation.reference, **kwargs: Any) -> Any:
            return run(reference, *args, **kwargs)

        operation.kernels = [Kernel("planted", "cpu", call, lambda *args, **kwargs: YES)]
    try:
        yield
    finally:
        for name, kept in before.items():
            NF.get(name).kernels = kept


def on_step(change: Callable[[Step], Step]) -> Callable[[Any], None]:
    """The model reads another step than it was given."""

    def plant(model: Any) -> None:
        forward = model.forward
        model.forward = lambda step: forward(change(step))

    return plant


def on_views(
    change: Callable[[Step, KVView], KVView], phase: Phase | None = None, where: Callable[[Step], bool] = lambda s: True
) -> Callable[[Any], None]:
    """The model reads other views of the cache, in one phase or in all."""

    def changed(step: Step) -> Step:
        if (phase is not None and step.phase is not phase) or not where(step):
            return step
        return replace(step, views=tuple(change(step, view) for view in step.views))

    return on_step(changed)


def at(path: str, change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Change one module."""

    def plant(model: Any) -> None:
        change(model.get_submodule(path))

    return plant


def setting(path: str, **values: Any) -> Callable[[Any], None]:
    """Set attributes of one module."""

    def change(module: Any) -> None:
        for name, value in values.items():
            assert hasattr(module, name), name
            setattr(module, name, value)

    return at(path, change)


def rewritten(path: str, change: Callable[[Tensor], Tensor], parameter: str = "weight") -> Callable[[Any], None]:
    """Rewrite one parameter."""

    def rewrite(module: Any) -> None:
        value = getattr(module, parameter)
        new = change(value.detach().clone())
        assert new.shape == value.shape and not new.equal(value)
        value.data.copy_(new)

    return at(path, rewrite)


def wrapped(path: str, wrap: Callable[..., Any]) -> Callable[[Any], None]:
    """Replace one module's forward by ``wrap(module, its own forward, *args)``."""

    def change(module: Any) -> None:
        forward = module.forward
        module.forward = lambda *args: wrap(module, forward, *args)

    return at(path, change)
