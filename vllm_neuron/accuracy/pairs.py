"""Which of our modules stands for which Hugging Face module: derived from the checkpoint table, not from names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from vllm_neuron.accuracy.calls import HFModel
from vllm_neuron.model.loading.plan import Source


@dataclass(frozen=True)
class Pair:
    """One of our modules and its counterpart.

    Attributes:
        ours, theirs: module names.
        layer: index of the layer; None outside the layers.
        whole: the pair is a whole layer.
    """

    ours: str
    theirs: str
    layer: int | None = None
    whole: bool = False

    @property
    def pattern(self) -> str:
        """``layers.3.attn`` -> ``layers.*.attn``."""
        return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", self.ours, count=1)


def find_pairs(model: nn.Module, sources: Mapping[str, Source], reference: HFModel) -> tuple[list[Pair], list[str]]:
    """The pairs in the order of the layers, and our blocks that have no Hugging Face module of their own.

    The counterpart of a block is the innermost Hugging Face module that holds all parameters from which the block's
    own were loaded. A block whose parameters lie loose in the layer (OPT's ``fc1`` and ``fc2``) has none; the whole
    layer's pair covers it.
    """
    theirs = {name: _home(source.keys, reference) for name, source in sources.items()}
    pairs: list[Pair] = []
    alone: list[str] = []
    names = dict(model.named_modules())
    layers: nn.Module = getattr(model, "layers", nn.ModuleList())
    for index, layer in enumerate(layers.children()):
        mine = f"layers.{index}"
        around = _common(_under(mine, theirs))
        if _usable(around, reference):
            pairs.append(Pair(mine, around, index, whole=True))
        for child in _children(layer, mine):
            home = _common(_under(child, theirs))
            if _usable(home, reference) and home != around and home.startswith(around):
                pairs.append(Pair(child, home, index))
            else:
                alone.append(child)
    for name in _children(model, ""):
        home = _common(_under(name, theirs))
        if name not in ("embed", "head", "layers") and name in names and _usable(home, reference):
            pairs.append(Pair(name, home))
    return _unique(pairs), alone


def _children(module: nn.Module, name: str) -> Iterator[str]:
    for child, each in module.named_children():
        if any(True for _ in each.parameters()):
            yield f"{name}.{child}" if name else child


def _under(name: str, theirs: Mapping[str, Collection[str]]) -> list[str]:
    return [home for parameter, homes in theirs.items() if parameter.startswith(name + ".") for home in homes]


def _home(keys: Sequence[str], reference: HFModel) -> list[str]:
    """Names of the Hugging Face modules that own the parameters behind some checkpoint keys."""
    found = []
    for key in keys:
        origin = reference.origin.get(key, key)
        for parameter in (origin,) if isinstance(origin, str) else origin:
            found.append(str(parameter).rpartition(".")[0])
    return found


def _common(names: Sequence[str]) -> str:
    """The longest run of whole name parts that all begin with."""
    if not names:
        return ""
    parts = [name.split(".") for name in names]
    shared: list[str] = []
    for each in zip(*parts, strict=False):
        if len(set(each)) > 1:
            break
        shared.append(each[0])
    return ".".join(shared)


def _usable(name: str, reference: HFModel) -> bool:
    if not name:
        return False
    try:
        module: Any = reference.model.get_submodule(name)
    except AttributeError:
        return False
    return not isinstance(module, nn.ModuleList | nn.ModuleDict) and module is not reference.model


def _unique(pairs: list[Pair]) -> list[Pair]:
    """Without the pairs whose Hugging Face module stands for several of our modules."""
    theirs = [pair.theirs for pair in pairs]
    return [pair for pair in pairs if theirs.count(pair.theirs) == 1]
