"""What became of one model type, and the table of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from vllm_neuron.errors import ConfigError

VERDICTS = ("proved", "open", "failed", "refused", "crashed", "timeout")


@dataclass(frozen=True)
class Row:
    """One model type.

    Attributes:
        model_type, architecture: transformers' names.
        verdict: a proof's own (``proved``, ``open``, ``failed``); ``refused`` when no package could be written, with a
            message that names why; ``crashed`` for a child that ended without an answer; ``timeout``.
        worst: largest relative error of the checks; None when nothing was measured.
        open: names of the features that the package leaves open.
        refused: variants that the package refuses by name.
        message: first line of what went wrong.
        source: what the package was made from.
        seconds: wall clock of the child.
        found, missed: with the self-test, flips of the reference that the proof found, and did not find.
        versions: of transformers and onboard, by which a result is known to be old.
    """

    model_type: str
    architecture: str
    verdict: str
    worst: float | None = None
    open: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    message: str = ""
    source: str = ""
    seconds: float = 0.0
    found: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    versions: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Row:
        """The reverse of :meth:`to_json`.

        Raises:
            ConfigError: a key that no row has, or a verdict that is none.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(raw) - known)
        if unknown or raw.get("verdict") not in VERDICTS:
            what = unknown[0] if unknown else f"verdict {raw.get('verdict')!r}"
            raise ConfigError("result", what, "a result of this version", "Run again without --resume.")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        return cls(**values)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Verdict -> number of rows, those that occur."""
    return {verdict: n for verdict in VERDICTS if (n := sum(row.verdict == verdict for row in rows))}


def summary(rows: Sequence[Row]) -> str:
    """One line: ``83 of 130 proved; 40 open, 7 failed``."""
    found = counts(rows)
    others = ", ".join(f"{n} {verdict}" for verdict, n in found.items() if verdict != "proved")
    line = f"{found.get('proved', 0)} of {len(rows)} proved"
    missed = sum(len(row.missed) for row in rows)
    flips = sum(len(row.found) for row in rows) + missed
    tail = f"; {flips - missed} of {flips} flips found" if flips else ""
    return f"{line}{f'; {others}' if others else ''}{tail}"


def notes(row: Row) -> str:
    """What there is to say of a row: open features, refused variants, a message, missed flips."""
    parts = [", ".join(row.open), row.message if row.verdict not in ("proved", "open") else ""]
    parts.append(f"refuses {', '.join(row.refused)}" if row.refused else "")
    parts.append(f"flips not found: {', '.join(row.missed)}" if row.missed else "")
    return "; ".join(part for part in parts if part)


def error_of(row: Row) -> str:
    """The worst error in two digits, or a dash."""
    return "-" if row.worst is None else f"{row.worst:.1e}"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document of a run."""
    return {"summary": summary(rows), "counts": counts(rows), "models": [row.to_json() for row in rows]}


def markdown(rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    versions = sorted({row.versions for row in rows if row.versions})
    lines = [
        "# The zoo",
        "",
        f"**{summary(rows)}** ({'; '.join(versions) or 'versions unknown'}).",
        "",
        "Each decoder-only language model of transformers goes through `onboard new` from the defaults of its config "
        "class, with no edit by hand, and through `onboard verify`: float32, a relative error of 1e-5 or less, in one "
        "pass, with the cache, in chunks, from a saved checkpoint, and on 1, 2 and 4 ranks. *Open* means that the "
        "package names what it leaves out. Written by `onboard zoo --output docs/zoo.md`.",
        "",
        "| model type | class | verdict | worst error | open features and notes |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        said = notes(row).replace("|", "\\|").replace("\n", " ")
        lines.append(f"| `{row.model_type}` | {row.architecture} | {row.verdict} | {error_of(row)} | {said} |")
    return "\n".join(lines) + "\n"
