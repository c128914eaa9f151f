"""One result of a check, with what it means and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a finding is to be taken: an error means that the plugin does not work as asked."""

    OK = "ok"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and the next action (empty when nothing is to be done)."""

    check: str
    status: Status
    message: str
    action: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON output."""
        return {key: str(value) for key, value in asdict(self).items()}


def ok(check: str, message: str) -> Finding:
    """A finding that needs nothing."""
    return Finding(check, Status.OK, message)


def warn(check: str, message: str, action: str) -> Finding:
    """A finding that may surprise."""
    return Finding(check, Status.WARN, message, action)


def error(check: str, message: str, action: str) -> Finding:
    """A finding that stops the plugin."""
    return Finding(check, Status.ERROR, message, action)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.status is Status.ERROR for finding in findings)
