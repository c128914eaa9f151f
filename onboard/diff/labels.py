"""Names for the kinds of layers of one model that mean the same in another model, and the pattern that they form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from onboard.arch.blocks import Layer
from onboard.arch.spec import ArchSpec

SOFTMAX = ("full", "sliding", "chunked")


def idle_window(layer: Layer, max_positions: int | None) -> int | None:
    """The layer's window where it is never shorter than what can be seen: such a layer attends to everything."""
    window = layer.attention.window if layer.attention else None
    return window if window is not None and max_positions is not None and window >= max_positions else None


def mixer_labels(layer: Layer, max_positions: int | None = None) -> tuple[str, str]:
    """A coarse and a fine name of a layer's mixer, e.g. ``("sliding", "sliding, shared cache")``."""
    coarse = "full" if idle_window(layer, max_positions) is not None else layer.mixer_kind
    attention = layer.attention
    if attention is None:
        return coarse, coarse
    fine = coarse
    if attention.compressor is not None:
        fine += f"/{attention.compressor.rate}"
    if attention.positions.kind == "none":
        fine += ", no positions"
    if attention.shared_kv is not None:
        fine += ", shared cache"
    return coarse, fine


def mlp_labels(layer: Layer) -> tuple[str, str]:
    """A coarse and a fine name of a layer's feed-forward part: ``dense``, ``MoE``, ``dense + MoE`` or ``no MLP``."""
    parts = [name for name, part in (("dense", layer.mlp), ("MoE", layer.moe)) if part is not None]
    coarse = " + ".join(parts) or "no MLP"
    fine = f"{coarse}, hash routed" if layer.moe is not None and layer.moe.router.hash else coarse
    return coarse, fine


def _numbered(labels: Sequence[str], parts: Sequence[Hashable]) -> list[str]:
    """``labels``, with a number where unequal ``parts`` have the same label."""
    groups: dict[str, dict[Hashable, int]] = {}
    numbers = []
    for label, part in zip(labels, parts, strict=True):
        group = groups.setdefault(label, {})
        numbers.append(group.setdefault(part, len(group) + 1))
    return [
        label if len(groups[label]) == 1 else f"{label} {number}" for label, number in zip(labels, numbers, strict=True)
    ]


class Labels:
    """The names of one model's kinds of layers, from coarse to fine, for the mixer and for the feed-forward part."""

    def __init__(self, arch: ArchSpec) -> None:
        self.arch = arch
        kinds = arch.kinds
        mixer = [mixer_labels(k, arch.max_positions) for k in kinds]
        mlp = [mlp_labels(k) for k in kinds]
        mixers = [(k.attention, k.state) for k in kinds]
        mlps = [(k.mlp, k.moe) for k in kinds]
        self.mixer = ([c for c, _ in mixer], [f for _, f in mixer], _numbered([f for _, f in mixer], mixers))
        self.mlp = ([c for c, _ in mlp], [f for _, f in mlp], _numbered([f for _, f in mlp], mlps))
        self.whole = self._whole()

    def _whole(self) -> list[str]:
        """One name for each kind of layer; a part that all layers share is left out of it."""
        parts = [column for column in (self.mixer[2], self.mlp[2]) if len(set(column)) > 1]
        if not parts:
            parts = [self.mixer[0]]
        names = [" + ".join(pieces) for pieces in zip(*parts, strict=True)]
        return _numbered(names, self.arch.kinds)

    def columns(self, facet: str) -> tuple[list[str], ...]:
        """Namings for the values of one facet, the coarsest first."""
        if facet == "mixer":
            return (*self.mixer, self.whole)
        if facet == "mlp":
            return (*self.mlp, self.whole)
        return (self.mixer[0], self.mlp[0], self.whole)


def runs(arch: ArchSpec, labels: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Layers in order as ``(count, label)``."""
    return tuple((len(list(run)), label) for label, run in itertools.groupby(labels[k] for k in arch.layer_kinds))


def pattern(sequence: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shortest ``(prefix, period)`` that gives ``sequence`` when the period is repeated after the prefix.

    A period counts only when it is seen whole at least twice, or has length 1; else everything is prefix.
    """
    n = len(sequence)
    backwards = sequence[::-1]
    borders = [0] * n
    best, best_prefix, best_period = n, n, 0
    border = 0
    for i in range(n):
        if i:
            while border and backwards[i] != backwards[border]:
                border = borders[border - 1]
            border += backwards[i] == backwards[border]
            borders[i] = border
        length = i + 1
        period = length - border
        if (2 * period <= length or period == 1) and n - length + period <= best:
            best, best_prefix, best_period = n - length + period, n - length, period
    return tuple(sequence[:best_prefix]), tuple(sequence[best_prefix : best_prefix + best_period])


def pattern_text(sequence: Sequence[str]) -> str:
    """The pattern in words: ``5 sliding, 1 full, repeated``; ``3 dense, then MoE``; ``all alike``."""
    prefix, period = pattern(sequence)
    if not prefix and len(set(period)) <= 1:
        return "all alike"
    head, tail = _grouped(prefix), _grouped(period)
    if not period:
        return head
    if len(period) == 1:
        return f"{head}, then {period[0]}"
    return f"{head}, then {tail}, repeated" if prefix else f"{tail}, repeated"


def _grouped(sequence: Sequence[str]) -> str:
    return ", ".join(f"{len(list(run))} {label}" for label, run in itertools.groupby(sequence))


def by_label(arch: ArchSpec, columns: Sequence[Sequence[str]], get: Callable[[int], Any], absent: Any) -> Any:
    """The value of ``get(kind)`` over all kinds: one value when all agree, else an object by the coarsest naming that
    decides it. Kinds whose value is ``absent`` are left out; ``absent`` when none is left."""
    values = [(kind, value) for kind in range(len(arch.kinds)) if (value := get(kind)) is not absent]
    if not values:
        return absent
    if all(value == values[0][1] for _, value in values):
        return values[0][1]
    out: dict[str, Any] = {}
    for column in columns:
        out = {}
        if all(out.setdefault(column[kind], value) == value for kind, value in values):
            return out
    return out
