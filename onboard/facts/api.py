"""``load``: the one way from a model's name, folder or ``config.json`` to what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onboard import catalog
from onboard.arch.spec import ArchSpec
from onboard.facts import classes, locate, sections, towers
from onboard.facts.build import build
from onboard.facts.families.table import FAMILIES
from onboard.facts.reader import Reader
from onboard.facts.sections import Section
from onboard.facts.source import Source
from vllm_neuron.errors import ConfigError

ORIGINS = ("file", "catalog", "cache", "hub")
__all__ = ["ORIGINS", "ModelFacts", "Source", "load", "read"]


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
        raw: the config as read (for a catalog model: the fields of its entry).
        text: the decoder's section of ``raw``.
        arch: the architecture.
        sources: path in the architecture -> where the value came from. A path names a field within a layer without
            saying which layer: ``attention.heads``, ``mlp.activation``, ``embedding.multiplier``, ``head.tied``; where
            kinds of layers differ in source there is ``attention.positions.base@sliding`` too.
        notes: things worth saying that change nothing (spelling, remote code not executed, confidence).
        warnings: contradictions, each with the winner, and keys that could not be understood.
        unknown_keys: keys of the decoder's section that no rule read.
        confidence: for a catalog model, how sure its source is (``verbatim``, ``reconstructed``, ...), else None.
        quantization: how the weights are stored (``quant_method``: "fp8", "mxfp4"); None: as ``arch.dtype`` says.
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
    quantization: str | None = None

    @property
    def known(self) -> bool:
        """Whether the family is known, so that counts are exact; else they rest on the assumptions in ``warnings``."""
        return self.model_type in FAMILIES


def load(model: str, revision: str | None = None, architecture: str | None = None) -> ModelFacts:
    """The facts of one model.

    Looked for in this order: a folder or a ``config.json``; the catalog; the local HF cache; the hub (unless
    ``HF_HUB_OFFLINE`` is set). Remote code is never executed.

    Args:
        model: a path or a model id, e.g. ``"meta-llama/Llama-3.1-8B"``.
        revision: a branch, tag or commit; skips the catalog, which knows no revisions.
        architecture: a class name that takes the place of the config's ``architectures``.

    Raises:
        ConfigError: not found, the config is damaged, or a value in it can't be right.
        UnsupportedError: it is not a decoder model (says what it looks like).
    """
    if not model.strip():
        raise ConfigError("model", model, "a path or a model id", "Give one, such as meta-llama/Llama-3.1-8B.")
    if locate.is_path(model):
        found = locate.from_path(model)
    else:
        known = catalog.find(model) if revision is None and architecture is None else None
        if known is not None:
            return from_catalog(known)
        found = locate.from_cache(model, revision) or _from_hub(model, revision)
    return read(found.raw, name=model, origin=found.origin, location=str(found.path), architecture=architecture)


def _from_hub(model: str, revision: str | None) -> locate.Found:
    if not locate.offline():
        return locate.from_hub(model, revision)
    close = catalog.suggest(model)
    hint = f"Did you mean {' or '.join(close)}?" if close else "See `onboard catalog list`, or give a folder."
    raise ConfigError("model", model, "a path, a catalog name or a cached model (HF_HUB_OFFLINE is set)", hint)


def read(
    raw: Mapping[str, Any],
    *,
    name: str = "config",
    origin: str = "file",
    location: str = "",
    architecture: str | None = None,
) -> ModelFacts:
    """The facts in a config that is already JSON; arguments and errors as :func:`load`."""
    section = sections.find(raw, name, architecture)
    arch, r = build(section, raw, towers.read(raw))
    notes = list(r.notes)
    if "auto_map" in raw or "auto_map" in section.text:
        notes.append("the repository has code of its own; it is not executed, the config is read as plain JSON")
    if section.path:
        notes.append(f"the decoder's settings are in {section.path}")
    if not any(s.get("architectures") for s in (raw, section.text)) and architecture is None:
        r.warn(f"no architectures in the config; taken from model_type {section.model_type!r:.60}")
    for warning in classes.contradictions(section):
        r.warn(warning)
    facts = _facts(name, origin, location, section, raw, arch, r, tuple(notes))
    return replace(facts, quantization=quantization(raw, section.text))


def quantization(raw: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    """The method that a ``quantization_config`` names, ``"unnamed"`` where it names none, None without one."""
    for section in (raw, text):
        settings = section.get("quantization_config")
        if isinstance(settings, Mapping) and settings:
            method = settings.get("quant_method") or settings.get("quant_algo")
            return method if isinstance(method, str) else "unnamed"
    return None


def from_catalog(name: str) -> ModelFacts:
    """The facts of a catalog model.

    Raises:
        ConfigError: no such name.
    """
    entry = catalog.entry(name)
    section = Section(entry.section, entry.fields, entry.model_type, entry.architectures)
    arch, r = build(section, entry.fields, entry.towers)
    notes = [*r.notes, f"catalog: {entry.confidence}; {entry.note}"]
    if entry.remote_code:
        notes.append("the repository has code of its own; it is not executed")
    if entry.missing:
        r.warn("the catalog's source lacks these, the family's defaults stand in: " + ", ".join(entry.missing))
    facts = _facts(entry.name, "catalog", entry.name, section, entry.fields, arch, r, tuple(notes))
    return replace(facts, confidence=entry.confidence, missing=entry.missing, quantization=entry.quantization)


def _facts(
    name: str,
    origin: str,
    location: str,
    section: Section,
    raw: Mapping[str, Any],
    arch: ArchSpec,
    r: Reader,
    notes: tuple[str, ...],
) -> ModelFacts:
    return ModelFacts(
        name=name,
        origin=origin,
        location=location,
        model_type=section.model_type,
        architectures=section.architectures,
        section=section.path,
        raw=raw,
        text=section.text,
        arch=arch,
        sources=dict(r.sources),
        notes=tuple(dict.fromkeys(notes)),
        warnings=tuple(r.warnings),
        unknown_keys=r.unknown_keys(),
    )
