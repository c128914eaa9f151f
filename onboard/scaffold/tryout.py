"""Rendered code tried against a tiny reference, before it is a package: what of the checkpoint it leaves over, and
which blocks compute something else than the reference's."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.probe.reference import References
from onboard.probe.tiny import Variant
from onboard.prove.package import FACTS, Package
from onboard.prove.proof import Check, Status
from onboard.prove.run import prove
from onboard.prove.subject import one_way
from onboard.scaffold.code import ModelCode
from vllm_neuron.errors import NeuronError
from vllm_neuron.model.loading.plan import make_plan
from vllm_neuron.model.neuron_config import NeuronConfig

# Of weights and inputs; a proof uses others.
SEED = 11
CHECKS = ("blocks", "whole")


@dataclass(frozen=True)
class Tried:
    """What came out.

    Attributes:
        failed: the checks that failed, in the order of the model.
    """

    failed: tuple[Check, ...]

    @property
    def blocks(self) -> tuple[str, ...]:
        """Blocks that differ from the reference's, e.g. ``layers.*.attn``; whole layers where nothing inside does."""
        names = [c.what.removeprefix("block ") for c in self.failed if c.kind == "blocks"]
        inner = [n for n in names if n != "layers.*"]
        return tuple(inner or names)


@contextmanager
def temporary(code: ModelCode, module: str, model_type: str) -> Iterator[Package]:
    """Rendered code as a package that exists inside the block alone."""
    with tempfile.TemporaryDirectory(prefix="onboard-try-") as scratch:
        folder = Path(scratch)
        sources = folder / "src" / module
        sources.mkdir(parents=True)
        texts = {"__init__": "", "config": code.config_py, "model": code.model_py, "factory": code.factory_py}
        for name, text in texts.items():
            (sources / f"{name}.py").write_text(text, encoding="utf-8")
        facts = {"architecture": code.class_name, "model_type": model_type, "open": []}
        (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        try:
            yield Package.load(folder)
        finally:
            for name in [n for n in sys.modules if n == module or n.startswith(module + ".")]:
                del sys.modules[name]


def try_out(
    code: ModelCode,
    module: str,
    model_type: str,
    variants: Sequence[Variant],
    references: References,
    checks: Sequence[str] = CHECKS,
) -> Tried:
    """Prove the blocks of rendered code on its first variant, with weights that no later proof uses."""
    with temporary(code, module, model_type) as package:
        proof = prove(package, variants[:1], only=checks, seed=SEED, reference=references)
    return Tried(tuple(c for c in proof.checks if c.status is Status.FAILED))


def refuses(package: Package, config: Any) -> bool:
    """Whether the package's config class names a field that it does not take."""
    try:
        package.factory.from_configs(config, NeuronConfig())
    except NeuronError:
        return True
    return False


def leftovers(
    code: ModelCode, module: str, model_type: str, config: Any, keys: Collection[str]
) -> tuple[list[str], list[str]]:
    """Keys of a checkpoint that the code's table leaves over, and parameters that it can't fill."""
    with temporary(code, module, model_type) as package, one_way():
        model = package.factory.from_configs(config, NeuronConfig())
        flags = {"tie_word_embeddings": bool(getattr(model, "tie_word_embeddings", False))}
        plan = make_plan(model.CHECKPOINT, dict(model.named_parameters()), keys, flags)
    return plan.unused, sorted(plan.unfilled)
