"""``load``: the one way from a model's name, folder or ``config.json`` to what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onboard.arch.spec import ArchSpec

ORIGINS = ("file", "catalog", "cache", "hub")


@dataclass(frozen=True)
class Source:
    """Where one value came from.

    ``kind``: ``explicit`` (written in the config), ``null`` (written as null, so the family's rule decides),
    ``family`` (the family's default, not in the config) or ``derived`` (computed from other values). ``key``: the raw
    key that was read or would decide, dotted from the top of the config; None for knowledge that no key carries.
    """

    kind: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.key})" if self.key else self.kind


@dataclass(frozen=True)
class ModelFacts:
    """What is known of one model.

    Attributes:
        name: what the caller asked for, or the catalog's spelling of it.
        origin: ``file``, ``catalog``, ``cache`` or ``hub``.
        location: the path or the entry that was read.
        model_type: of the language model's section.
        architectures: class names, as written.
        section: dotted path of the section that holds the decoder ("" for the top).
        raw: the config as read (for a catalog model: our own field names).
        text: the decoder's section of ``raw``.
        arch: the architecture.
        sources: path in the architecture -> where the value came from. A path names a field within a layer without
            saying which layer: ``attention.heads``, ``mlp.activation``, ``embedding.multiplier``, ``head.tied``; where
            kinds of layers differ in source there is ``attention.positions.base@sliding`` too.
        notes: things worth saying that change nothing (spelling, remote code not executed, confidence).
        warnings: contradictions, each with the winner, and keys that could not be understood.
        unknown_keys: keys of the decoder's section that no rule read.
        confidence: for a catalog model, how sure its source is (``verbatim``, ``reconstructed``, ...), else None.
        missing: fields that the catalog's source lacks, so that the family's default stands in for them.
    """

    name: str
    origin: str
    location: str
    model_type: str | None
    architectures: tuple[str, ...]
    section: str
    raw: Mapping[str, Any]
    text: Mapping[str, Any]
    arch: ArchSpec
    sources: Mapping[str, Source] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown_keys: tuple[str, ...] = ()
    confidence: str | None = None
    missing: tuple[str, ...] = ()


def load(model: str, revision: str | None = None) -> ModelFacts:
    """The facts of one model.

    Looked for in this order: a folder or a ``config.json``; the catalog; the local HF cache; the hub (unless
    ``HF_HUB_OFFLINE`` is set). Remote code is never executed.

    Args:
        model: a path or a model id, e.g. ``"meta-llama/Llama-3.1-8B"``.
        revision: a branch, tag or commit; skips the catalog, which knows no revisions.

    Raises:
        ConfigError: the config is damaged, or a value in it can't be right.
        UnsupportedError: it is not a decoder model (says what it looks like), or not found.
    """
    raise NotImplementedError
