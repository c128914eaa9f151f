"""What is tested: a package's model on one checkpoint, made anew for each rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from vllm_neuron.model.loading.checkpoint import Checkpoint
from vllm_neuron.model.loading.plan import Source, make_plan
from vllm_neuron.model.neuron_config import NeuronConfig


class Target(Protocol):
    """A model that can be made in a dtype, for the tensor-parallel group of the thread."""

    def load(self, dtype: torch.dtype) -> Any:
        """The model with its weights."""
        ...

    def sources(self, model: Any) -> dict[str, Source]:
        """Parameter of a loaded model -> where in the checkpoint it came from."""
        ...


_setting = threading.Lock()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype inside a ``with`` block; one thread at a time, since the process has one."""
    with _setting:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


@dataclass(frozen=True)
class PackageTarget:
    """The model of a package's factory on a checkpoint folder.

    Attributes:
        factory: class with ``from_configs``.
        folder: Hugging Face folder with safetensors files.
        hf_config: as transformers reads it from the folder.
        neuron_config: of the model.
        prepare: called with each loaded model.
    """

    factory: Any
    folder: Path
    hf_config: Any
    neuron_config: NeuronConfig = field(default_factory=NeuronConfig)
    prepare: Callable[[Any], None] | None = None

    def load(self, dtype: torch.dtype) -> Any:
        """See :class:`Target`."""
        with default_dtype(dtype):
            model = self.factory.from_configs(self.hf_config, self.neuron_config)
        model.load_weights(self.folder, dtype, progress=False)
        if self.prepare is not None:
            self.prepare(model)
        return model

    def sources(self, model: Any) -> dict[str, Source]:
        """See :class:`Target`."""
        return sources_of(model, self.folder)


def sources_of(model: Any, folder: Path) -> dict[str, Source]:
    """Parameter of a loaded model -> where in the checkpoint it came from."""
    with Checkpoint(folder) as checkpoint:
        flags = {"tie_word_embeddings": bool(getattr(model, "tie_word_embeddings", False))}
        return make_plan(model.CHECKPOINT, dict(model.named_parameters()), checkpoint.tensors, flags).sources
