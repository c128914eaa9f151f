"""A model package served without installing it, for as long as a block lasts."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_neuron import envs
from vllm_neuron.model.registry import GROUP


@dataclass(frozen=True)
class Uninstalled:
    """A package that registers one architecture.

    Attributes:
        name: of the distribution that it would be, and of its module.
        architecture: the name in ``architectures``.
        factory: ``package.module:Class``.
        sources: folder in which the module's folder lies; None when Python finds it already.
    """

    name: str
    architecture: str
    factory: str
    sources: Path | None = None

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Make it known to this process and its children, and let it win over other packages."""
        from vllm_neuron.vllm.general import register_architecture

        before = list(sys.path)
        with (
            tempfile.TemporaryDirectory(prefix="package-") as scratch,
            envs.changed({"VLLM_NEURON_MODEL_PACKAGE": self.name}),
        ):
            info = Path(scratch) / f"{self.name}-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 0\n", encoding="utf-8")
            entry = f"[{GROUP}]\n{self.architecture} = {self.factory}\n"
            (info / "entry_points.txt").write_text(entry, encoding="utf-8")
            sys.path[:0] = [scratch, *([str(self.sources)] if self.sources else [])]
            importlib.invalidate_caches()
            try:
                register_architecture(self.architecture)
                yield
            finally:
                sys.path[:] = before
