"""One proof under way: its variants, then the engine, then the real checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onboard.probe.reference import quiet
from onboard.prove.package import Package
from onboard.prove.proof import Check, Status
from onboard.prove.reference import HFReference
from onboard.prove.run import Progress, Variant
from onboard.prove.subject import RAISED, one_way, words
from onboard.prove.variant import OWN, STEPS, VariantProof, read_subject


@dataclass
class ProofSession:
    """What a proof has found so far."""

    package: Package
    scratch: Path
    seed: int
    only: tuple[str, ...]
    progress: Progress | None
    reference: Callable[..., HFReference]
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _done: int = 0
    _total: int = 0

    def run(self, variants: Sequence[Variant], *, engine: bool, checkpoint: Path | None) -> None:
        """Everything that was asked for, in order."""
        self._total = len(variants) * STEPS + int(engine) + int(checkpoint is not None)
        served: tuple[HFReference, Path] | None = None
        with one_way(), quiet():
            for index, variant in enumerate(variants):
                self._done = index * STEPS
                made = self._variant(index, variant)
                served = served or made
                if served and self.only and not set(self.only) & OWN:
                    break
        self._done = len(variants) * STEPS
        if engine and served is not None:
            from onboard.prove.engine import check_engine

            self._step("served by vLLM")
            self.checks.append(check_engine(self.package, *served, seed=self.seed))
        elif engine:
            message = "no variant of the model could be loaded"
            self.checks.append(Check("", "engine", "served by vLLM", None, 0.0, Status.NOT_RUN, message))
        if checkpoint is not None:
            from onboard.prove.checkpoint import check_checkpoint

            self._step("real checkpoint")
            checks, notes = check_checkpoint(self.package, checkpoint)
            self.checks += checks
            self.notes += notes
        self._step("done")

    def _step(self, what: str) -> None:
        if self.progress is not None:
            self.progress(what, min(self._done, self._total), self._total)
        self._done += 1

    def _variant(self, index: int, variant: Variant) -> tuple[HFReference, Path] | None:
        """Run one variant; its reference and folder when the package's model could be loaded from it."""
        folder = self.scratch / f"{index}-{variant.name}"
        self._step(f"{variant.name}: reference")
        self._done -= 1
        seed = self.seed + 31 * index
        try:
            reference = self.reference(variant.config, seed=seed)
            subject = read_subject(self.package, reference, folder)
        except RAISED as error:
            message = f"the reference can't be made: {words(error, self.package)}"
            self.checks.append(Check(variant.name, "reference", "the reference", None, 0.0, Status.FAILED, message))
            return None
        proof = VariantProof(variant.name, subject, reference, seed, self.only, index > 0, self._step)
        proof.run()
        self.checks += proof.checks
        self.notes += proof.notes
        return (reference, folder) if proof.loaded else None
