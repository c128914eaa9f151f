"""Runs the checks of a proof in order and collects what they found."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from onboard.prove.package import Package
from onboard.prove.proof import Proof
from vllm_neuron.errors import ConfigError, UnsupportedError, nearest

# Of weights and inputs; the detection uses small numbers.
SEED = 7919
KINDS = ("blocks", "whole", "cache", "ranks", "engine", "checkpoint")
BASE = "base"

Progress = Callable[[str, int, int], None]


class Variant(Protocol):
    """One config of the reference."""

    @property
    def name(self) -> str:
        """``base`` first, then one for each optional feature."""
        ...

    @property
    def config(self) -> Any:
        """The transformers config."""
        ...


def prove(
    package: Package,
    variants: Sequence[Variant] | None = None,
    *,
    engine: bool = False,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    only: Collection[str] = (),
    seed: int = SEED,
    reference: Callable[..., Any] | None = None,
) -> Proof:
    """Hold a package against transformers, variant by variant.

    Args:
        package: what is proved.
        variants: configs of the reference, ``base`` first; by default those of the package's model type, made from the
            config that the package was generated from.
        engine: also serve the first variant that was proved with vLLM once, in a child process.
        checkpoint: a folder of the real model; its tensors' names, shapes and shard sizes are accounted for.
        progress: called with what runs now, steps done and steps in all.
        only: kinds of checks to run, out of :data:`KINDS`; all when empty.
        seed: of weights and inputs.
        reference: makes the reference of a config, ``reference(config, seed=...)``; the probe's by default.

    Raises:
        ConfigError: an unknown kind of check.
        UnsupportedError: transformers has no decoder of the package's architecture.
    """
    only = check_kinds(only)
    from onboard.probe.reference import Reference
    from onboard.prove.session import ProofSession

    begin = time.perf_counter()
    numeric = not only or bool(set(only) - {"checkpoint"})
    chosen = (variants if variants is not None else default_variants(package)) if numeric else ()
    with tempfile.TemporaryDirectory(prefix="onboard-prove-") as scratch:
        session = ProofSession(package, Path(scratch), seed, only, progress, reference or Reference)
        session.run(chosen, engine=engine, checkpoint=checkpoint)
    return Proof(
        package=package.name,
        architecture=package.architecture,
        checks=tuple(session.checks),
        open=package.open,
        seconds=time.perf_counter() - begin,
        seed=seed,
        partial=only,
        notes=tuple(session.notes),
    )


def prove_package(where: str | Path, **options: Any) -> Proof:
    """The proof of the package in a folder, as its own test asks for it; the options are :func:`prove`'s."""
    return prove(Package.load(where), **options)


def default_variants(package: Package) -> Sequence[Variant]:
    """The probe's variants for the package's model type.

    Raises:
        UnsupportedError: transformers knows no model type for the architecture.
    """
    from onboard.probe.tiny import variants

    return variants(package.model_type or model_type_of(package.architecture), package.given)


def model_type_of(architecture: str) -> str:
    """The model type whose causal LM has this class name in the installed transformers.

    Raises:
        UnsupportedError: there is none.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    found = [model_type for model_type, name in NAMES.items() if name == architecture]
    if not found:
        raise UnsupportedError(
            "architecture",
            architecture,
            "a causal LM of the installed transformers",
            nearest(architecture, NAMES.values()),
        )
    return found[0]


def check_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    """The kinds of checks, each once, in the order of :data:`KINDS`.

    Raises:
        ConfigError: one of them is unknown.
    """
    wrong = next((kind for kind in kinds if kind not in KINDS), None)
    if wrong is not None:
        raise ConfigError("--only", wrong, "one of " + ", ".join(KINDS), nearest(wrong, KINDS))
    return tuple(kind for kind in KINDS if kind in kinds)
