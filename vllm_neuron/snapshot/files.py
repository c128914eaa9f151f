"""Captured tensors on disk: one safetensors file a step and rank, written whole or not at all, and an index.

``DIR/rank0/step-000012.safetensors`` holds what the modules were given (``layers.0.attn/0/in.0``: module, number of the
call in the step, argument) and gave (``layers.0.attn/0/out.0``), rows of padding cut off, and in its header whose rows
they are. ``DIR/rank0/index.json`` is the table of contents of all files; it is written anew about once a second and
when the engine ends. A reader asks the files themselves, so a crash loses nothing that was written.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.inspection_config import TensorCapture
from vllm_neuron.snapshot.label import StepLabel

logger = logging.getLogger(__name__)
SCHEMA = 1
INDEX = "index.json"
HEADER = "capture"
INDEX_EVERY_S = 1.0


def write_whole(path: Path, write: Any) -> None:
    """Let ``write(temporary)`` write a file beside ``path``, then give it its name.

    Raises:
        OSError: the disk is full or read-only; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        write(temporary)
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """A safetensors file whose metadata hold ``header`` as JSON; see :func:`write_whole`."""
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda temporary: save_file(plain, temporary, metadata={HEADER: json.dumps(header)}))


def write_json(path: Path, value: Any) -> None:
    """A JSON file; see :func:`write_whole`."""
    text = json.dumps(value, indent=1, allow_nan=False)
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@dataclass
class _Pending:
    """A step whose file is not written yet."""

    label: StepLabel
    calls: list[dict[str, Any]]
    tensors: dict[str, Tensor]


class CaptureWriter:
    """Writes one rank's captured tensors.

    It stops, once and for all, before it would pass ``max_bytes``, and when the disk takes no more; the engine goes on.

    Args:
        config: of the capture.
        rank: whose ``rank<N>`` folder is written.
        about: what the index says of the run: model, dtype, versions.
        modules: names of the watched modules.

    Raises:
        ConfigError: the folder can't be made, or holds files of an earlier run.
    """

    def __init__(self, config: TensorCapture, rank: int, about: Mapping[str, Any], modules: Sequence[str]) -> None:
        self.config, self.rank, self.about, self.modules = config, rank, dict(about), tuple(modules)
        self.folder = new_folder(Path(config.dir) / f"rank{rank}", "neuron_config.tensor_capture.dir")
        self.stopped: str | None = None
        self.bytes = 0
        self._steps: list[dict[str, Any]] = []
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._ids: dict[int, list[int]] = {}
        self._indexed = 0.0

    def begin(self, step: int, token_ids: list[int]) -> None:
        """A step that is captured is about to run these ids."""
        self._ids[step] = token_ids

    def add(self, label: StepLabel, module: str, inputs: Mapping[str, Tensor], outputs: Sequence[Tensor]) -> None:
        """Take in one call; the tensors are copies, their rows are ``label.spans``."""
        if self.stopped:
            return
        pending = self._pending.setdefault(label.step, _Pending(label, [], {}))
        call = sum(entry["module"] == module for entry in pending.calls)
        named = {f"in.{key}": value for key, value in inputs.items()}
        named |= {f"out.{i}": value for i, value in enumerate(outputs)}
        size = sum(value.nbytes for value in named.values())
        if self.bytes + self._pending_bytes + size > self.config.max_bytes:
            self._stop(f"max_bytes {self.config.max_bytes} would be passed at step {label.step}")
            return
        self._pending_bytes += size
        pending.calls.append({"module": module, "call": call, "spans": [span.to_json() for span in label.spans]})
        pending.tensors.update({f"{module}/{call}/{key}": value for key, value in named.items()})

    def flush(self) -> None:
        """Write the steps that came since the last call, each to its file."""
        for step in sorted(self._pending):
            if self.stopped:
                break
            self._write(self._pending[step])
        self._pending, self._pending_bytes, self._ids = {}, 0, {}
        if self._steps and not self.stopped and time.monotonic() - self._indexed >= INDEX_EVERY_S:
            self._write_index()

    def _write(self, pending: _Pending) -> None:
        label = pending.label
        path = self.folder / f"step-{label.step:06d}.safetensors"
        header: dict[str, Any] = {"schema": SCHEMA, "step": label.step, "phase": label.phase, "rank": self.rank}
        header |= {"token_ids": self._ids.get(label.step, []), "calls": pending.calls}
        try:
            write_tensors(path, pending.tensors, header)
        except OSError as error:
            self._stop(f"step {label.step} could not be written: {error}")
            return
        size = sum(value.nbytes for value in pending.tensors.values())
        self.bytes += size
        tensors = {
            name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
            for name, value in pending.tensors.items()
        }
        self._steps.append({**header, "file": path.name, "bytes": size, "tensors": tensors})

    def _stop(self, why: str) -> None:
        self.stopped, self._pending = why, {}
        logger.warning("tensor_capture: rank %d stops, %s; what was written before stays", self.rank, why)
        self._write_index()

    def _write_index(self) -> None:
        self._indexed = time.monotonic()
        steps = [{key: value for key, value in step.items() if key not in ("schema", "rank")} for step in self._steps]
        index = {"schema": SCHEMA, **self.about, "rank": self.rank, "modules": self.modules, "bytes": self.bytes}
        try:
            write_json(self.folder / INDEX, {**index, "stopped": self.stopped, "steps": steps})
        except OSError as error:
            logger.warning("tensor_capture: %s could not be written: %s", INDEX, error)

    def close(self) -> None:
        """Write what is left, and the index."""
        self.flush()
        self._write_index()


def new_folder(path: Path, field: str) -> Path:
    """Make a folder that is new, or exists and is empty.

    Raises:
        ConfigError: it has files, or can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        filled = next(path.iterdir(), None)
    except OSError as error:
        raise ConfigError(field, str(path), "a folder that can be made", str(error)) from error
    if filled is not None:
        raise ConfigError(field, str(path), "a new or an empty folder", f"It holds {filled.name}; name another one.")
    return path
