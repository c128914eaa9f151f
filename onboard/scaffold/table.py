"""The rows of a checkpoint table: stored names matched with the parameters of the blocks that read them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onboard.scaffold import roles
from onboard.scaffold.roles import Stored

LAYER = "layers.{i}."


@dataclass
class Rows:
    """Rows as source text, the classes that they use, and stored names that no part takes."""

    lines: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    def add(self, kind: str, ours: str, key: str, **options: object) -> None:
        """One row."""
        more = "".join(f", {name}={value!r}" for name, value in options.items() if value)
        line = f'{kind}("{ours}", "{key}"{more})'
        if line not in self.lines:
            self.lines.append(line)
        self.kinds.add(kind)


@dataclass(frozen=True)
class Layout:
    """What names alone don't say.

    Attributes:
        norms: stored norm within a layer (without the layer's prefix) -> our module.
        qkv: how queries, keys and values are stored, as in ``Attention.storage``.
        transposed: patterns whose matrix is stored [in, out].
        experts: how the experts' matrices are stored (options of a row).
        tied: the head may be the embedding.
        gated: the plain MLP's ``up`` is a gated one's.
    """

    norms: Mapping[str, str]
    final_norm: str | None = None
    qkv: str = "separate"
    transposed: frozenset[str] = frozenset()
    experts: Mapping[str, object] = field(default_factory=dict)
    latent: bool = False


def rows(stored: Sequence[Stored], layout: Layout) -> Rows:
    """The rows of one model's checkpoint, in the order of the forward pass."""
    out = Rows()
    groups: dict[str, list[Stored]] = {}
    for one in stored:
        groups.setdefault(roles.split(one.pattern)[0], []).append(one)
    outside = groups.pop("", [])
    _top(out, outside, layout, ("embed", "positions", "embed_norm"))
    for prefix, members in groups.items():
        attention = [m for m in members if roles.in_attention(roles.split(m.pattern)[1])]
        taken = {m.pattern for m in attention}
        _norms(out, prefix, members, layout, taken)
        _attention(out, attention, layout)
        _mlp(out, [m for m in members if m.pattern not in taken], layout)
    _top(out, outside, layout, ("norm", "head"))
    known = {m.pattern for g in groups.values() for m in g}
    out.unknown += [m.pattern for m in outside if _top_part(m, layout) is None and m.pattern not in known]
    return out


def _top_part(one: Stored, layout: Layout) -> str | None:
    if one.pattern == layout.final_norm:
        return "norm"
    return roles.matching(roles.TOP, one.pattern, whole=True)


def _top(out: Rows, members: Iterable[Stored], layout: Layout, parts: Sequence[str]) -> None:
    for part in parts:
        for one in members:
            if _top_part(one, layout) == part:
                out.add("Map", part, one.pattern)


def _norms(out: Rows, prefix: str, members: Iterable[Stored], layout: Layout, taken: set[str]) -> None:
    for one in members:
        ours = layout.norms.get(one.pattern.removeprefix(prefix))
        if ours is not None:
            taken.add(one.pattern)
            out.add("Map", LAYER + ours, one.pattern)


def _attention(out: Rows, members: Sequence[Stored], layout: Layout) -> None:
    found = {}
    for one in members:
        part = roles.matching(roles.ATTENTION, roles.split(one.pattern)[1].split(".", 1)[-1])
        if part is None or part in found:
            out.unknown.append(one.pattern)
        else:
            found[part] = one
    if layout.latent:
        for part in ("q", "q_a", "q_a_norm", "q_b", "kv_a", "kv_norm", "kv_b"):
            if part in found:
                ours = "q_norm" if part == "q_a_norm" else part
                out.add("Map", f"{LAYER}attn.{ours}", found.pop(part).pattern)
    _qkv(out, found, layout)
    for part, one in found.items():
        options = {"transpose": one.pattern in layout.transposed}
        out.add("Map", f"{LAYER}attn.{part}", one.pattern, **options)


def _qkv(out: Rows, found: dict[str, Stored], layout: Layout) -> None:
    if "qkv" in found:
        one = found.pop("qkv")
        layouts = {"per head": "per_head", "grouped": "grouped"}
        out.add(
            "Map",
            LAYER + "attn.qkv",
            one.pattern,
            layout=layouts.get(layout.qkv),
            transpose=one.pattern in layout.transposed,
        )
    elif {"q", "k", "v"} <= found.keys():
        names = [found.pop(part).pattern for part in "qkv"]
        out.add("Fuse", LAYER + "attn.qkv", braces(names))


def braces(names: Sequence[str]) -> str:
    """``a.q_proj``, ``a.k_proj`` -> ``a.{q,k}_proj``."""
    start = os.path.commonprefix(list(names))
    rest = [name[len(start) :] for name in names]
    end = os.path.commonprefix([r[::-1] for r in rest])[::-1]
    middles = [r[: len(r) - len(end)] for r in rest]
    return f"{start}{{{','.join(middles)}}}{end}"


def _mlp(out: Rows, members: Sequence[Stored], layout: Layout) -> None:
    dense: dict[str, Stored] = {}
    shared: dict[str, Stored] = {}
    experts: dict[str, Stored] = {}
    for one in members:
        tail = roles.split(one.pattern)[1]
        inside, of_all = roles.EXPERTS.fullmatch(tail), roles.SHARED.fullmatch(tail)
        router = roles.matching(roles.ROUTER, tail)
        if of_all is not None:
            part = roles.matching(roles.MLP, of_all.group(2))
            _keep(out, shared, part, one)
        elif router in ("router.correction_bias", "shared_gate"):
            out.add("Map", f"{LAYER}mlp.{router}", one.pattern)
        elif inside is not None:
            _keep(out, experts, _expert_part(inside.group(2)), one)
        elif router is not None:
            out.add("Map", LAYER + "mlp.router", one.pattern)
        elif tail == "layer_scalar":
            out.add("Map", LAYER + "scalar", one.pattern)
        else:
            _keep(out, dense, roles.matching(roles.MLP, tail), one)
    _feed_forward(out, dense, "mlp.", layout)
    _feed_forward(out, shared, "mlp.shared.", layout)
    _experts(out, experts, layout)


def _keep(out: Rows, found: dict[str, Stored], part: str | None, one: Stored) -> None:
    if part is None or part in found:
        out.unknown.append(one.pattern)
    else:
        found[part] = one


def _expert_part(tail: str) -> str | None:
    bias = "_bias" if tail.endswith("_bias") else ""
    part = roles.matching(roles.MLP, tail.removesuffix("_bias"))
    return None if part is None else part + bias


def _feed_forward(out: Rows, found: dict[str, Stored], ours: str, layout: Layout) -> None:
    if "gate" in found and "up" in found:
        out.add("Fuse", f"{LAYER}{ours}gate_up", braces([found.pop(p).pattern for p in ("gate", "up")]))
    for part, one in found.items():
        out.add("Map", f"{LAYER}{ours}{part}", one.pattern, transpose=one.pattern in layout.transposed)


def _experts(out: Rows, found: dict[str, Stored], layout: Layout) -> None:
    if "gate" in found and "up" in found:
        key = braces([found.pop(p).pattern for p in ("gate", "up")])
        kind = "StackExperts" if "{e}" in key else "Fuse"
        out.add(kind, LAYER + "mlp.experts.gate_up", key)
    for part, one in found.items():
        kind = "StackExperts" if "{e}" in one.pattern else "Map"
        options = {} if "{e}" in one.pattern else dict(layout.experts)
        out.add(kind, f"{LAYER}mlp.experts.{part}", one.pattern, **options)
