"""What modules are given and give, step by step: forward hooks, installed once.

:func:`capture` keeps records in memory for as long as a ``with`` block lasts, on any ``nn.Module``. The runner installs
:class:`ModuleHooks` once at load and says itself which step runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vllm_neuron.parallel import get_tp_group
from vllm_neuron.snapshot.label import Span, StepLabel
from vllm_neuron.snapshot.patterns import match_modules
from vllm_neuron.step import Phase, Step

OnCall = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]


@dataclass(frozen=True, eq=False)
class Record:
    """One call of one module.

    Attributes:
        module: its name in the model.
        label: the step it belongs to.
        rank: tensor-parallel rank.
        inputs: copies of the tensors among the arguments: ``"0"``, ``"1"`` for positional ones, the keyword for others,
            ``"name.0"`` inside a tuple. A :class:`~vllm_neuron.step.Step` is not among them.
        outputs: copies of the tensors that the module gave; one, unless it gave a tuple.
        positions_T: int64 [T] of the step, padding included; None where the model is called without a step.
    """

    module: str
    label: StepLabel
    rank: int
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor, ...]
    positions_T: Tensor | None = None

    @property
    def step(self) -> int:
        """Number of the step."""
        return self.label.step

    @property
    def phase(self) -> str | None:
        """Phase of the step."""
        return self.label.phase

    @property
    def input(self) -> Tensor:
        """The hidden states among the inputs: the argument of that name, else the first input."""
        return self.inputs[hidden_name(self.inputs)]

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]


def hidden_name(inputs: Mapping[str, Any]) -> str:
    """Which of a module's inputs are its hidden states: ``hidden_states``, as transformers calls them, or the first."""
    return "hidden_states" if "hidden_states" in inputs else next(iter(inputs))


def tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors among named values, and in tuples and lists among them; not copied."""
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, tuple | list):
            found.update(tensors_of({f"{name}.{i}": part for i, part in enumerate(value)}))
    return found


def call_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a call, named as in :attr:`Record.inputs`; not copied."""
    return tensors_of({**{str(i): value for i, value in enumerate(args)}, **kwargs})


def output_tensors(output: Any) -> tuple[Tensor, ...]:
    """The tensors that a module gave; not copied."""
    return tuple(tensors_of({"": output}).values())


class ModuleHooks:
    """Forward hooks on the modules that fit some patterns; installed at once, removed by :meth:`remove`.

    Args:
        model: whose modules are watched.
        patterns: see :func:`~vllm_neuron.snapshot.patterns.compile_pattern`.
        on_call: gets the module's name, arguments, keyword arguments and output after each call, nothing copied.
        field: what an error about a pattern names.

    Attributes:
        names: of the watched modules, in the model's order.
        called: those that were called since the hooks were installed.

    Raises:
        ConfigError: a pattern that fits no module.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str], on_call: OnCall, field: str = "modules") -> None:
        modules = match_modules(model, patterns, field)
        self.names = tuple(modules)
        self.called: set[str] = set()
        self._on_call = on_call
        self._handles = [
            module.register_forward_hook(self._hook(name), with_kwargs=True) for name, module in modules.items()
        ]

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self.called.add(name)
            self._on_call(name, args, kwargs, output)

        return hook

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


@contextmanager
def capture(model: nn.Module, patterns: Sequence[str], *, inputs: bool = True) -> Iterator[dict[str, list[Record]]]:
    """Record every call of some modules while the block lasts.

    A step is one call of ``model.forward``, numbered from 0; what runs after it (a head) belongs to it still. The hooks
    are gone after the block, the records stay.

    Args:
        model: a model of this project or of transformers.
        patterns: see :func:`~vllm_neuron.snapshot.patterns.compile_pattern`.
        inputs: keep inputs too; False halves the memory.

    Yields:
        Module name -> its records, in the order of the calls; every module that fits has a list, an empty one when it
        is never called (a projection whose weight a fused operation reads).

    Raises:
        ConfigError: a pattern that fits no module.
    """
    seen: dict[str, list[Record]] = {}
    with _numbered(model) as clock:

        def record(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = call_tensors(args, kwargs) if inputs else {}
            seen[name].append(
                Record(
                    module=name,
                    label=clock.label,
                    rank=get_tp_group().rank,
                    inputs={key: copied(value) for key, value in given.items()},
                    outputs=tuple(copied(value) for value in output_tensors(output)),
                    positions_T=clock.positions_T,
                )
            )

        hooks = ModuleHooks(model, patterns, record)
        seen.update({name: [] for name in hooks.names})
        try:
            yield seen
        finally:
            hooks.remove()


def copied(tensor: Tensor) -> Tensor:
    """A copy on the CPU that no later step changes."""
    return tensor.detach().to("cpu", copy=True)


class _Clock:
    """The step that runs now."""

    def __init__(self) -> None:
        self.label = StepLabel(0)
        self.positions_T: Tensor | None = None
        self.calls = 0

    def tick(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        step = next((value for value in (*args, *kwargs.values()) if isinstance(value, Step)), None)
        if step is None:
            self.label, self.positions_T = StepLabel(self.calls), None
        else:
            spans = spans_of(step)
            self.label, self.positions_T = StepLabel(self.calls, step.phase.value, spans), step.positions_T.clone()
        self.calls += 1


def spans_of(step: Step) -> tuple[Span, ...]:
    """The tokens of a step by request, called 0, 1, ... in its order; padding writes to slot 0 and is left out."""
    positions = step.positions_T.tolist()
    real = int((step.views[0].slots_T > 0).sum()) if step.views else len(positions)
    if step.phase is Phase.DECODE:
        return tuple(Span(str(i), i, 1, positions[i]) for i in range(real))
    starts = [i for i in range(real) if i == 0 or positions[i] != positions[i - 1] + 1]
    ends = [*starts[1:], real]
    return tuple(Span(str(n), i, end - i, positions[i]) for n, (i, end) in enumerate(zip(starts, ends, strict=True)))


@contextmanager
def _numbered(model: nn.Module) -> Iterator[_Clock]:
    clock = _Clock()
    forward, own = model.forward, model.__dict__.get("forward")

    def numbered(*args: Any, **kwargs: Any) -> Any:
        clock.tick(args, kwargs)
        return forward(*args, **kwargs)

    model.forward = numbered
    try:
        yield clock
    finally:
        if own is None:
            del model.forward
        else:
            model.forward = own
