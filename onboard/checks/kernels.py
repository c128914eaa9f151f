"""Which kernel each operation of a model takes, for every shape that a server would run: a dry run without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from torch import Tensor, nn

import vllm_neuron.functional as NF
from onboard.checks.kernels_model import DryModel
from vllm_neuron.functional import dispatch
from vllm_neuron.functional.operation import Support
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.nki import backend
from vllm_neuron.nki.bounds import Bound, bound
from vllm_neuron.nki.execute import watching
from vllm_neuron.step import Phase
from vllm_neuron.vllm.worker.buckets import Shape


@dataclass(frozen=True)
class Call:
    """One operation on one set of arguments.

    Attributes:
        operation: its name.
        arguments: name -> ``[2, 64] bfloat16`` for a tensor, else Python's text of the value; None is left out.
    """

    operation: str
    arguments: tuple[tuple[str, str], ...]


@dataclass
class Row:
    """One kind of call in one shape of a step.

    Attributes:
        shape: of the step.
        call: operation and arguments.
        count: how often in one step.
        kernel: the NKI kernel that takes it; None where none does.
        compiler: why it is left to the compiler; None where a kernel is meant to take it.
        answers: kernel -> what it says, in the order in which they are tried.
        runs: kernels that it runs, each with the least work that it must do; None where that is not known.
        cost: counted on the stand-in, when asked for.
    """

    shape: Shape
    call: Call
    count: int
    kernel: str | None
    compiler: str | None
    answers: dict[str, Support]
    runs: tuple[tuple[str, Bound | None], ...] = ()
    cost: Any = None

    @property
    def refused(self) -> bool:
        """No kernel takes it, and that is not meant so."""
        return self.kernel is None and self.compiler is None

    def why(self) -> str:
        """Why no kernel takes it, or why those before the one that does do not."""
        said = [f"{name}: {answer}" for name, answer in self.answers.items() if not answer.ok]
        return "; ".join(said) or ("there is no NKI kernel for it" if self.refused else "")


@dataclass
class KernelReport:
    """What :func:`dry_run` finds.

    Attributes:
        model, architecture, package: what was looked at.
        route: where kernels run on this machine.
        lnc: NeuronCores of a logical core.
        limits: of the server, by option.
        rows: every kind of call of every shape.
        notes: what was left out or assumed.
        missing: kernels that are not installed -> why; these are no refusals.
        examples: fake arguments of each call, for measuring.
    """

    model: str
    architecture: str
    package: str
    route: str
    lnc: int
    limits: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    examples: dict[Call, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def left(self) -> dict[str, str]:
        """Operations that are left to the compiler on purpose, with the reason."""
        return {row.call.operation: row.compiler for row in self.rows if row.kernel is None and row.compiler}

    @property
    def refusals(self) -> int:
        """Kinds of calls that fall back to torch."""
        return len({(row.call, row.shape) for row in self.rows if row.refused})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "package": self.package,
            "route": self.route,
            "lnc": self.lnc,
            "limits": self.limits,
            "refusals": self.refusals,
            "notes": self.notes,
            "missing": self.missing,
            "rows": [_row(row) for row in self.rows],
        }


def _row(row: Row) -> dict[str, Any]:
    found = {
        "phase": row.shape.phase.value,
        "size": row.shape.size,
        "context": row.shape.context,
        "operation": row.call.operation,
        "arguments": dict(row.call.arguments),
        "calls": row.count,
        "kernel": row.kernel,
        "compiler": row.compiler,
        "refused": [
            {"kernel": name, "field": said.field, "value": str(said.value), "limit": said.limit}
            for name, said in row.answers.items()
            if not said.ok
        ],
    }
    if row.cost is not None:
        found["cost"] = row.cost.to_json()
    return found


def dry_run(model: DryModel) -> KernelReport:
    """Run every size of each phase, at the largest context, on fake tensors, and ask the kernels about each call."""
    report = KernelReport(
        model.name,
        model.architecture,
        model.package,
        str(backend.host_route()),
        backend.logical_cores(),
        {name.replace("_", "-"): value for name, value in vars(model.limits).items()},
    )
    longest = model.buckets.context[-1]
    recorder = _Recorder(report)
    with NF.use_kernels("simulate"), _layers_once(model.model) as times, model.running():
        recorder.times = times
        for shape in model.buckets.shapes():
            if shape.phase is Phase.PREFILL or shape.context == longest:
                recorder.shape = shape
                with NF.observe(recorder), watching(recorder.kernel):
                    model.run(shape)
        if len(times.layers) < times.total:
            report.notes.append(f"layers: {times.total}, of {len(times.layers)} kinds; one of each kind is run")
    if len(model.buckets.context) > 1:
        report.notes.append(f"contexts: the largest, {longest}, of {len(model.buckets.context)} buckets")
    return report


class _Recorder:
    """An observer of operations that fills a report."""

    def __init__(self, report: KernelReport) -> None:
        self.report = report
        self.rows: dict[tuple[Shape, Call], Row] = {}
        self.shape: Shape | None = None
        self.times: _Times | None = None
        self.runs: list[tuple[str, Bound | None]] = []

    def kernel(self, name: str, grid: int, arguments: Mapping[str, Any]) -> None:
        """Note a kernel that the current operation runs."""
        try:
            self.runs.append((name, bound(name, arguments)))
        except RuntimeError:
            # The least work of a mixture follows from the choice of experts, which fake tensors have not.
            self.runs.append((name, None))

    def __call__(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        assert self.shape is not None and self.times is not None
        call = Call(operation, tuple((k, _text(v)) for k, v in arguments.items() if v is not None))
        row = self.rows.get((self.shape, call))
        if row is None:
            row = self.rows[self.shape, call] = self._row(call, arguments)
            self.report.rows.append(row)
            self.report.examples.setdefault(call, dict(arguments))
        row.count += self.times.now
        self.runs.clear()

    def _row(self, call: Call, arguments: Mapping[str, Any]) -> Row:
        operation = NF.get(call.operation)
        answers = {}
        for kernel in operation.kernels:
            if kernel.target == dispatch.NKI:
                there = kernel.installed()
                if there.ok:
                    answers[kernel.name] = kernel.supports(**arguments)
                else:
                    self.report.missing[kernel.name] = f"{there.field} is {there.value}, it needs {there.limit}"
        assert self.shape is not None
        taken = next((name for name, answer in answers.items() if answer.ok), None)
        return Row(self.shape, call, 0, taken, operation.compiler, answers, tuple(self.runs))


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"[{', '.join(map(str, value.shape))}] {str(value.dtype).removeprefix('torch.')}"
    return repr(value) if isinstance(value, bool | int | float | str) else type(value).__name__


@dataclass
class _Times:
    """How often the layer that runs now stands in the model."""

    layers: list[nn.Module]
    counts: list[int]
    now: int = 1

    @property
    def total(self) -> int:
        """Layers of the model."""
        return sum(self.counts)


@contextmanager
def _layers_once(model: DecoderModel) -> Iterator[_Times]:
    """Keep one of each kind of layer while it lasts; a model with a ``forward`` of its own keeps all."""
    whole = model.layers
    kinds: dict[Any, list[nn.Module]] = {}
    for number, layer in enumerate(whole):
        own = type(model).forward is not DecoderModel.forward
        kinds.setdefault(number if own else _kind(layer), []).append(layer)
    times = _Times([some[0] for some in kinds.values()], [len(some) for some in kinds.values()])
    handles = []
    for layer, count in zip(times.layers, times.counts, strict=True):
        handles.append(layer.register_forward_pre_hook(lambda *_, count=count: setattr(times, "now", count)))
        handles.append(layer.register_forward_hook(lambda *_: setattr(times, "now", 1)))
    model.layers = nn.ModuleList(times.layers)
    try:
        yield times
    finally:
        model.layers = whole
        for handle in handles:
            handle.remove()


def _kind(layer: nn.Module) -> Any:
    """What decides a layer's shapes and arguments: equal for layers that make the same calls."""
    found: list[Any] = [type(layer)]
    for path, module in layer.named_modules():
        for name, value in sorted(vars(module).items()):
            if name == "reads" or name.startswith("_"):
                continue
            if isinstance(value, bool | int | float | str | None):
                found.append((path, name, value))
            elif is_dataclass(value) and not isinstance(value, type):
                found.append((path, name, _without_name(value)))
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            found.append((path, name, None if tensor is None else (tuple(tensor.shape), tensor.dtype)))
    return tuple(found)


def _without_name(value: Any) -> str:
    """Its text; a cache's own name and tensors do not count."""
    fields = {k: v for k, v in vars(value).items() if k != "name" and not isinstance(v, Tensor)}
    return f"{type(value).__name__}{fields}"
