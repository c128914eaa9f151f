"""What a proof found: its checks, what is open, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BAR = 1e-5


class Status(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"
    NOT_RUN = "not run"


class Verdict(StrEnum):
    """What the checks say of the package."""

    PROVED = "proved"
    OPEN = "open"
    FAILED = "failed"


@dataclass(frozen=True)
class Divergence:
    """The first place, in the order of the forward pass, where the package and the reference part.

    Attributes:
        layer: index of the layer; None outside the layers.
        block: our module, e.g. ``layers.3.attn``.
        expected: class and name of the Hugging Face module whose output was expected, or what stands for it.
        rel_err: relative error of the block's output there.
    """

    layer: int | None
    block: str
    expected: str
    rel_err: float

    def words(self) -> str:
        """One line."""
        where = "" if self.layer is None else f"layer {self.layer}, "
        size = (
            f"rel. error {self.rel_err:.1e}" if finite(self.rel_err) is not None else "NaN, infinity or another shape"
        )
        return f"first divergence: {where}{self.block} against {self.expected} ({size})"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"layer": self.layer, "block": self.block, "expected": self.expected, "rel_err": finite(self.rel_err)}


@dataclass(frozen=True)
class Check:
    """One comparison of the package with its reference.

    Attributes:
        variant: name of the variant of the reference's config; "" for checks that have none.
        kind: ``blocks``, ``whole``, ``cache``, ``ranks``, ``engine`` or ``checkpoint``.
        what: what was compared.
        rel_err: worst relative error; None where nothing was measured.
        seconds: wall clock.
        status: how it ended.
        message: why it failed, was refused or was not run.
        divergence: where the two part, when it failed by numbers.
    """

    variant: str
    kind: str
    what: str
    rel_err: float | None
    seconds: float
    status: Status = Status.PASSED
    message: str = ""
    divergence: Divergence | None = None

    @property
    def name(self) -> str:
        """``variant: what``, unique in a proof."""
        return f"{self.variant}: {self.what}" if self.variant else self.what

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        found: dict[str, Any] = {
            "name": self.name,
            "rel_err": None if self.rel_err is None else finite(self.rel_err),
            "seconds": round(self.seconds, 3),
            "status": self.status.value,
        }
        if self.message:
            found["message"] = self.message
        if self.divergence is not None:
            found["divergence"] = self.divergence.to_json()
        return found


@dataclass(frozen=True)
class OpenFeature:
    """A feature that the package names and does not compute.

    Attributes:
        feature: its name, as in ``onboard.json`` and in front of the ``NotImplementedError``'s text.
        source: the Hugging Face class or place that computes it.
        file, line: where the package's code waits for it; the file is relative to the package's folder.
        test: the test that fails until it is written, ``file::function``; "" when there is none.
    """

    feature: str
    source: str
    file: str
    line: int
    test: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "feature": self.feature,
            "source": self.source,
            "file": self.file,
            "line": self.line,
            "test": self.test,
        }


@dataclass(frozen=True)
class Proof:
    """All checks of one package.

    Attributes:
        package: its name.
        architecture: the name in ``architectures``.
        checks: in the order in which they ran.
        open: features that the package leaves out by name.
        seconds: wall clock of everything.
        seed: of weights and inputs.
        partial: kinds of checks that were asked for, when not all were (``--only``).
        notes: further findings, a line each, e.g. shard sizes of the real checkpoint.
    """

    package: str
    architecture: str
    checks: tuple[Check, ...]
    open: tuple[OpenFeature, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    partial: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """``failed`` when a check failed or none passed; else ``open`` while a feature is left out; else ``proved``."""
        if any(check.status is Status.FAILED for check in self.checks):
            return Verdict.FAILED
        if self.open or any(check.status is Status.NOT_RUN for check in self.checks):
            return Verdict.OPEN
        return Verdict.PROVED if any(check.status is Status.PASSED for check in self.checks) else Verdict.FAILED

    @property
    def worst(self) -> float | None:
        """The largest relative error that was measured."""
        return max((check.rel_err for check in self.checks if check.rel_err is not None), default=None)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return with_status(self.checks, Status.FAILED)

    @property
    def divergence(self) -> Divergence | None:
        """The first place that any failed check names; inner blocks come before their layers."""
        return next((check.divergence for check in self.failures if check.divergence), None)

    @property
    def refused(self) -> tuple[Check, ...]:
        """The variants and sizes that the package refuses by name."""
        return with_status(self.checks, Status.REFUSED)

    @property
    def not_run(self) -> tuple[Check, ...]:
        """The checks that wait for an open feature."""
        return with_status(self.checks, Status.NOT_RUN)

    def to_json(self) -> dict[str, Any]:
        """The published shape: verdict, checks, open, and what helps to read them."""
        return {
            "verdict": self.verdict.value,
            "checks": [check.to_json() for check in self.checks],
            "open": [feature.to_json() for feature in self.open],
            "package": self.package,
            "architecture": self.architecture,
            "bar": BAR,
            "worst": None if self.worst is None else finite(self.worst),
            "seed": self.seed,
            "seconds": round(self.seconds, 2),
            "partial": list(self.partial),
            "notes": list(self.notes),
        }


def with_status(checks: Iterable[Check], status: Status) -> tuple[Check, ...]:
    """The checks that ended so."""
    return tuple(check for check in checks if check.status is status)


def finite(number: float) -> float | None:
    """The number, or None for one that JSON can't hold."""
    return number if abs(number) < float("inf") else None
