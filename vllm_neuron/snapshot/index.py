"""Reading a folder that :mod:`vllm_neuron.snapshot.files` wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_neuron.errors import ConfigError, nearest
from vllm_neuron.snapshot.capture import Record
from vllm_neuron.snapshot.files import HEADER, INDEX, SCHEMA
from vllm_neuron.snapshot.label import Span, StepLabel

STEP = re.compile(r"step-(\d{6,})\.safetensors")
RANK = re.compile(r"rank(\d{1,5})")


@dataclass(frozen=True)
class Call:
    """One call of a module as a file has it.

    Attributes:
        module: name. number: of the call in its step.
        label: the step, and whose rows the tensors' rows are.
        shapes: name of the tensor (``in.0``, ``out.0``) -> (dtype, shape).
    """

    module: str
    number: int
    label: StepLabel
    shapes: Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class StepFile:
    """One step of one rank; the tensors are read when they are asked for.

    Attributes:
        path, rank: where it is from.
        label: the step, and whose rows the first call's are.
        calls: in order.
        token_ids: that the step ran.
    """

    path: Path
    rank: int
    label: StepLabel
    calls: tuple[Call, ...]
    token_ids: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def records(self, module: str | None = None) -> list[Record]:
        """The calls with their tensors, of one module or of all.

        Raises:
            ConfigError: the file is damaged.
        """
        found = []
        with _opened(self.path) as file:
            for call in self.calls:
                if module in (None, call.module):
                    tensors = {key: file.get_tensor(f"{call.module}/{call.number}/{key}") for key in call.shapes}
                    inputs = {key.removeprefix("in."): t for key, t in tensors.items() if key.startswith("in.")}
                    outputs = tuple(t for key, t in tensors.items() if key.startswith("out."))
                    found.append(Record(call.module, call.label, self.rank, inputs, outputs))
        return found


@dataclass(frozen=True)
class CaptureFolder:
    """All ranks and steps of a capture.

    Attributes:
        path: the folder.
        steps: the files, by rank and step.
        about: rank -> what its index says of the run; empty where the run had no time to write one.
    """

    path: Path
    steps: tuple[StepFile, ...]
    about: Mapping[int, Mapping[str, Any]]

    @classmethod
    def open(cls, path: str | Path, field: str = "capture folder") -> CaptureFolder:
        """Read what is in a folder; no tensors yet.

        Raises:
            ConfigError: no such folder, nothing captured in it, a damaged file, or one that lies elsewhere.
        """
        path = Path(path)
        ranks = {int(m[1]): each for each in _listed(path, field) if (m := RANK.fullmatch(each.name))}
        steps, about = [], {}
        for rank, folder in sorted(ranks.items()):
            files = sorted(each for each in _listed(folder, field) if STEP.fullmatch(each.name))
            steps += [_step_file(path, each, rank) for each in files]
            about[rank] = _index(path, folder / INDEX)
        if not ranks:
            raise ConfigError(field, str(path), "a folder with rank0, ... in it", "Name the dir of tensor_capture.")
        return cls(path, tuple(steps), about)

    @property
    def ranks(self) -> list[int]:
        """Ranks that wrote."""
        return sorted(self.about)

    @property
    def modules(self) -> list[str]:
        """Names of the modules that were captured, in the order of the calls."""
        return list(dict.fromkeys(call.module for step in self.steps for call in step.calls))

    def records(self, module: str, *, rank: int = 0, step: int | None = None) -> Iterator[Record]:
        """The calls of one module, step by step; one file's tensors in memory at a time.

        Raises:
            ConfigError: no such module or rank was captured; a damaged file.
        """
        if module not in self.modules:
            raise ConfigError("module", module, "one that was captured", nearest(module, self.modules))
        if rank not in self.about:
            raise ConfigError("rank", rank, "one of " + ", ".join(map(str, self.ranks)))
        for each in self.steps:
            if each.rank == rank and step in (None, each.label.step):
                yield from each.records(module)


def inside(root: Path, path: Path) -> Path:
    """The path, when it lies in ``root`` once links are followed.

    Raises:
        ConfigError: it lies elsewhere.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(str(path), str(path.resolve()), f"a file in {root}", "Links out of the folder are not read.")
    return path


def _listed(path: Path, field: str) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(field, str(path), "a folder that can be read", str(error)) from error


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(str(path), str(error), "a whole safetensors file", "Capture again.") from error


def header_of(path: Path) -> tuple[Mapping[str, Any], Mapping[str, tuple[str, tuple[int, ...]]]]:
    """What a file's header says, and name -> (dtype, shape) of its tensors.

    Raises:
        ConfigError: it is damaged, or was not written here.
    """
    with _opened(path) as file:
        text = (file.metadata() or {}).get(HEADER)
        shapes = {}
        for key in file.keys():  # noqa: SIM118 - not a mapping
            part = file.get_slice(key)
            shapes[key] = (str(part.get_dtype()), tuple(part.get_shape()))
    try:
        header = json.loads(text or "null")
    except ValueError as error:
        raise ConfigError(str(path), text, "a header in JSON") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise ConfigError(str(path), header, f"a file that this version wrote (schema {SCHEMA})")
    return header, shapes


def _step_file(root: Path, path: Path, rank: int) -> StepFile:
    header, shapes = header_of(inside(root, path))
    try:
        step, phase, ids = int(header["step"]), header["phase"], tuple(map(int, header["token_ids"]))
        calls = []
        for each in header["calls"]:
            prefix = f"{each['module']}/{each['call']}/"
            own = {key.removeprefix(prefix): shape for key, shape in shapes.items() if key.startswith(prefix)}
            label = StepLabel(step, phase, tuple(Span(*span) for span in each["spans"]))
            calls.append(Call(each["module"], each["call"], label, own))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            str(path), f"{type(error).__name__}: {error}", "a header as tensor_capture writes it"
        ) from error
    label = calls[0].label if calls else StepLabel(step, phase)
    return StepFile(path, rank, label, tuple(calls), ids)


def _index(root: Path, path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(inside(root, path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), str(error), "an index in JSON") from error
    if not isinstance(found, dict):
        raise ConfigError(str(path), type(found).__name__, "a JSON object")
    return {key: value for key, value in found.items() if key != "steps"}


def tensors_in(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Raises:
        ConfigError: it is damaged.
    """
    with _opened(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
