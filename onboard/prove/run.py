"""Runs the checks of a proof in order and collects what they found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from onboard.prove.package import Package
from onboard.prove.proof import Proof

SEED = 7919
KINDS = ("blocks", "whole", "cache", "ranks", "engine", "checkpoint")


def prove(
    package: Package,
    variants: Sequence[Any] | None = None,
    *,
    engine: bool = False,
    checkpoint: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    only: Collection[str] = (),
    seed: int = SEED,
    reference: Callable[..., Any] | None = None,
) -> Proof:
    """See the module; written next."""
    raise NotImplementedError("prove")


def prove_package(where: str | Path) -> Proof:
    """The proof of the package in a folder, as its own test asks for it."""
    return prove(Package.load(where))
