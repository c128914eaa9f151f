"""What a check of a real model is made on: a checkpoint folder, its tokenizer, and the package that computes it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onboard.errors import RunError
from vllm_neuron.errors import CheckpointError, ConfigError, NeuronError, nearest

if TYPE_CHECKING:
    from vllm_neuron.accuracy.target import PackageTarget
    from vllm_neuron.vllm.uninstalled import Uninstalled


@dataclass(frozen=True)
class Subject:
    """A model that is there, and the package for it.

    Attributes:
        folder: Hugging Face folder with weights.
        config: as transformers reads it.
        package: name for people: an installed package's entry point, or the one that was named; "" when there is none.
        factory: the class that makes the model; None when there is no package.
        uninstalled: how vLLM finds a package that was named; None when the registry has it.
    """

    folder: Path
    config: Any
    package: str
    factory: Any
    uninstalled: Uninstalled | None = None

    @property
    def vocab_size(self) -> int:
        """Of the reference."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def max_length(self) -> int | None:
        """Positions that the model was made for; None when its config does not say."""
        found = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return None if found is None else int(found)

    def target(self) -> PackageTarget:
        """The package's model on this checkpoint, without vLLM."""
        from vllm_neuron.accuracy.target import PackageTarget

        return PackageTarget(self.factory, self.folder, self.config)

    def tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            CheckpointError: there is none, or transformers can't read it.
        """
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{self.folder}: tokenizer", first, "a tokenizer of transformers") from None


def find_subject(model: str, package: str | None, *, needed: bool = True) -> Subject:
    """Look at a checkpoint folder and find its package, before anything heavy is loaded.

    Args:
        model: the folder.
        package: a package's folder or module; None for the one that the registry knows.
        needed: an architecture without a package is an error.

    Raises:
        CheckpointError: no such folder, or no weights in it that can be read.
        ConfigError: the package can't be imported, or is for another architecture.
        UnsupportedError: no package is registered for the architecture.
    """
    folder = checkpoint_folder(model)
    from vllm_neuron.model.loading.checkpoint import Checkpoint

    with Checkpoint(folder):
        pass
    config = _config(folder)
    architectures = [str(each) for each in config.architectures or ()]
    if len(architectures) != 1:
        raise CheckpointError(f"{folder / 'config.json'}: architectures", architectures, "one architecture")
    if package is not None:
        return _named(folder, config, architectures[0], package)
    from vllm_neuron.model.registry import find, registered, resolve

    if not needed and architectures[0] not in registered():
        return Subject(folder, config, "", None)
    factory = resolve(architectures[0])
    return Subject(folder, config, find(architectures[0]).value.partition(":")[0].removesuffix(".factory"), factory)


@contextmanager
def running(subject: Subject) -> Iterator[None]:
    """What the package's own code raises becomes one line that names the place; what others raise is let through.

    Raises:
        RunError: an exception that is none of the project's.
    """
    from onboard.prove.package import place
    from onboard.prove.subject import RAISED

    try:
        yield
    except NeuronError:
        raise
    except RAISED as error:
        root = None if subject.factory is None else Path(inspect.getfile(subject.factory)).parent
        files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
        if root is None or not any(file.is_relative_to(root) for file in files):
            raise
        words = f"{type(error).__name__}: {error}{place(error, root)}"
        action = "Mend it; `onboard verify` runs the package on tiny checkpoints."
        raise RunError(f"package {subject.package}", words, "a run to its end", action) from error


def checkpoint_folder(model: str) -> Path:
    """A folder with a ``config.json``.

    Raises:
        CheckpointError: it is none.
    """
    folder = Path(model)
    if not (folder / "config.json").is_file():
        there = "a folder without config.json" if folder.is_dir() else "no folder"
        action = "A model id is not enough: validation reads the weights. Save or download the model into a folder."
        raise CheckpointError("MODEL", model, f"a checkpoint folder (it is {there})", action)
    return folder


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{folder / 'config.json'}", first, "a config of transformers") from None


def _named(folder: Path, config: Any, architecture: str, package: str) -> Subject:
    from onboard.prove.package import Package
    from vllm_neuron.vllm.uninstalled import Uninstalled

    found = Package.load(package)
    if found.generated and found.architecture != architecture:
        raise ConfigError(
            "--package", package, f"a package for {architecture}", nearest(found.architecture, [architecture])
        )
    module = inspect.getmodule(found.factory)
    assert module is not None
    value = f"{module.__name__}:{found.factory.__name__}"
    sources = found.sources.parent if Path(package).is_dir() else None
    name = found.name if sources else found.name.replace(".", "_")
    return Subject(folder, config, found.name, found.factory, Uninstalled(name, architecture, value, sources))
