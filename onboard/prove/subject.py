"""The package's model on one saved checkpoint, and the ways in which a sequence is run through it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onboard.prove.package import Package, place
from vllm_neuron.accuracy.session import Session
from vllm_neuron.accuracy.target import sources_of
from vllm_neuron.errors import NeuronError
from vllm_neuron.model.loading.plan import Source
from vllm_neuron.model.neuron_config import NeuronConfig

# What a package's code may raise while it is built, loaded or run.
RAISED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NeuronError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
BLOCK_SIZE = 4


def words(error: BaseException, package: Package) -> str:
    """The exception in one line, with its place in the package; ours say enough by themselves."""
    if isinstance(error, NeuronError):
        return str(error)
    return f"{type(error).__name__}: {error}{place(error, package.folder)}"


@contextmanager
def one_way() -> Iterator[None]:
    """torch's default dtype is float32 inside, and one thread computes: tiny tensors lose time on more."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Subject:
    """A package and a checkpoint of one variant.

    Attributes:
        package: what is proved.
        folder: the saved checkpoint.
        hf_config: as transformers reads it back from the folder.
    """

    package: Package
    folder: Path
    hf_config: Any

    @classmethod
    def read(cls, package: Package, folder: Path) -> Subject:
        """The subject of a saved checkpoint."""
        from transformers import AutoConfig

        return cls(package, folder, AutoConfig.from_pretrained(folder))

    def build(self) -> Any:
        """The model on the meta device, for the current tensor-parallel group."""
        return self.package.factory.from_configs(self.hf_config, NeuronConfig())

    def load(self, model: Any | None = None) -> Any:
        """A built model with its weights."""
        model = self.build() if model is None else model
        model.load_weights(self.folder, torch.float32, progress=False)
        return model

    def sources(self, model: Any) -> dict[str, Source]:
        """Parameter of a loaded model -> where in the checkpoint it came from."""
        return sources_of(model, self.folder)


class Runner:
    """Runs one sequence in pieces through a session; `count` is the number of real tokens of the piece that runs."""

    def __init__(self, model: Any, total: int) -> None:
        self.session = Session(model, max_tokens=total + 2 * BLOCK_SIZE, block_size=BLOCK_SIZE)
        self.parts: list[Tensor] = []
        self.count = 0

    def _take(self, run: Callable[..., Tensor], ids: Sequence[int], *args: Any, **options: Any) -> None:
        self.count = len(ids)
        self.parts.append(run(*(args or (list(ids),)), **options))

    def prefill(self, ids: Sequence[int], pad: int = 0) -> None:
        """The first tokens."""
        self._take(self.session.prefill, ids, pad=pad)

    def extend(self, ids: Sequence[int], pad: int = 0) -> None:
        """A further piece."""
        self._take(self.session.extend, ids, pad=pad)

    def decode(self, ids: Sequence[int]) -> None:
        """The rest, token by token."""
        for token in ids:
            self._take(self.session.decode, [token], token)

    @property
    def logits(self) -> Tensor:
        """float32 [T, V] of all tokens so far."""
        return torch.cat(self.parts)


Way = Callable[[Runner, Sequence[int]], None]


def whole(runner: Runner, ids: Sequence[int]) -> None:
    """All tokens in one step, which reads no cache."""
    runner.prefill(ids)


def one_piece(runner: Runner, ids: Sequence[int]) -> None:
    """A padded prefill of half the tokens, then one token at a time."""
    half = len(ids) // 2
    runner.prefill(ids[:half], pad=3)
    runner.decode(ids[half:])


def chunks(runner: Runner, ids: Sequence[int]) -> None:
    """Pieces of uneven length, some padded, then a few single tokens."""
    edges = [0, len(ids) // 7 + 2, len(ids) // 7 + 3, len(ids) // 2, max(len(ids) - 5, len(ids) // 2)]
    runner.prefill(ids[: edges[1]])
    for number, (start, stop) in enumerate(itertools.pairwise(edges[1:])):
        runner.extend(ids[start:stop], pad=5 * (number % 2))
    runner.decode(ids[edges[-1] :])


def tokens(runner: Runner, ids: Sequence[int]) -> None:
    """Three tokens, then one at a time to the end: past every window and past the original context."""
    runner.prefill(ids[:3])
    runner.decode(ids[3:])


def run(model: Any, way: Way, ids: Sequence[int]) -> Tensor:
    """Logits float32 [T, V] of the tokens, run one way over a fresh cache."""
    runner = Runner(model, len(ids))
    way(runner, ids)
    return runner.logits
