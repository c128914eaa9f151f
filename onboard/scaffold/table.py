"""The rows of a checkpoint table: stored names matched with the parameters of the blocks that read them."""

from __future__ import annotations

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
        names = f'"{ours}", "{key}"' if key else f'"{ours}"'
        line = f"{kind}({names}{more})"
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
        interleaved_experts: the experts' gate and up rows are stored in turn.
        gated_experts: the experts have a gate.
        gated_mlp: dense MLPs have a gate.
        beside: experts stand beside a dense MLP.
        latent: attention is latent (MLA).
        query_gate: the output gate's rows are in the query projection.
        hidden: H of the checkpoint that the shapes are from.
    """

    norms: Mapping[str, str]
    final_norm: str | None = None
    qkv: str = "separate"
    transposed: frozenset[str] = frozenset()
    interleaved_experts: bool = False
    gated_experts: bool = True
    gated_mlp: bool = True
    beside: bool = False
    latent: bool = False
    query_gate: bool = False
    hidden: int = 0


def rows(stored: Sequence[Stored], layout: Layout) -> Rows:
    """The rows of one model's checkpoint, in the order of the forward pass."""
    out = Rows()
    groups: dict[str, list[Stored]] = {}
    for one in stored:
        groups.setdefault(roles.split(one.pattern)[0], []).append(one)
    outside = groups.pop("", [])
    parts = ("per_layer.table", "per_layer.projection", "per_layer.norm")
    _top(out, outside, layout, ("embed", "positions", "embed_norm", *parts))
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
    return roles.matching(roles.PER_LAYER | roles.TOP, one.pattern, whole=True)


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
        layouts = {"per head": "per_head", "grouped": "grouped", "four blocks": "four_blocks"}
        out.add(
            "Map",
            LAYER + "attn.qkv",
            one.pattern,
            layout=layouts.get(layout.qkv),
            transpose=one.pattern in layout.transposed,
        )
    elif {"q", "k", "v"} <= found.keys():
        names = [found.pop(part).pattern for part in "qkv"]
        gate = "query_gate" if layout.query_gate else None
        out.add("Fuse", LAYER + "attn.qkv", braces(names), layout=gate)
        if gate is not None:
            out.add("Map", LAYER + "attn.gate", names[0], layout=gate)


def braces(names: Sequence[str]) -> str:
    """``a.q_proj``, ``a.k_proj`` -> ``a.{q,k}_proj``."""
    start = _common(names)
    rest = [name[start:] for name in names]
    end = _common([r[::-1] for r in rest])
    middles = [r[: len(r) - end] for r in rest]
    return f"{names[0][:start]}{{{','.join(middles)}}}{rest[0][len(rest[0]) - end :]}"


def _common(names: Sequence[str]) -> int:
    """How many characters all names begin with."""
    return next((k for k, same in enumerate(zip(*names, strict=False)) if len(set(same)) > 1), min(map(len, names)))


def _mlp(out: Rows, members: Sequence[Stored], layout: Layout) -> None:
    dense: dict[str, Stored] = {}
    shared: dict[str, Stored] = {}
    experts: dict[str, Stored] = {}
    sparse = "mlp.moe." if layout.beside else "mlp."
    for one in members:
        tail = roles.split(one.pattern)[1]
        inside, of_all = roles.EXPERTS.fullmatch(tail), roles.SHARED.fullmatch(tail)
        router = roles.matching(roles.ROUTER, tail)
        if of_all is not None:
            part = roles.matching(roles.MLP, of_all.group(2))
            _keep(out, shared, part, one)
        elif router not in (None, "router"):
            out.add("Map", f"{LAYER}{sparse}{router}", one.pattern)
        elif inside is not None:
            _keep(out, experts, _expert_part(inside.group(2)), one)
        elif len(one.shape) == 3:
            _keep(out, experts, roles.matching(roles.MLP, tail), one)
        elif router is not None:
            out.add("Map", f"{LAYER}{sparse}router", one.pattern)
        elif (part := roles.matching(roles.PER_LAYER, tail, whole=True)) is not None:
            out.add("Map", LAYER + part, one.pattern)
        elif tail == "layer_scalar":
            out.add("Map", LAYER + "scalar", one.pattern)
        else:
            _keep(out, dense, roles.matching(roles.MLP, tail), one)
    _feed_forward(out, dense, "mlp.mlp." if layout.beside else "mlp.", layout)
    _feed_forward(out, shared, f"{sparse}shared.", layout)
    _experts(out, experts, layout, sparse)


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
    if layout.gated_mlp and "up" in found and not {"gate", "gate_up"} & found.keys():
        # One matrix under the name of a plain MLP's.
        found["gate_up"] = found.pop("up")
    if "gate" in found and "up" in found:
        out.add("Fuse", f"{LAYER}{ours}gate_up", braces([found.pop(p).pattern for p in ("gate", "up")]))
    for part, one in found.items():
        out.add("Map", f"{LAYER}{ours}{part}", one.pattern, transpose=one.pattern in layout.transposed)


def _experts(out: Rows, found: dict[str, Stored], layout: Layout, sparse: str) -> None:
    if layout.gated_experts and "up" in found and "gate" not in found:
        found = {("gate_up" if part == "up" else part): one for part, one in found.items()}
    if "gate" in found and "up" in found:
        one, two = found.pop("gate"), found.pop("up")
        key = braces([one.pattern, two.pattern])
        if "{e}" in key:
            out.add("StackExperts", f"{LAYER}{sparse}experts.gate_up", key)
        else:
            out.add("Fuse", LAYER + _leaf(f"{sparse}experts.gate_up", one), key)
    for part, one in found.items():
        ours = LAYER + _leaf(f"{sparse}experts.{part.removesuffix('_bias')}", one)
        if "{e}" in one.pattern:
            out.add("StackExperts", ours, one.pattern)
        else:
            interleaved = layout.interleaved_experts and part.startswith("gate_up")
            options = {"transpose": _turned(part, one, layout), "layout": "interleaved" if interleaved else None}
            out.add("Map", ours, one.pattern, **options)


def _leaf(ours: str, one: Stored) -> str:
    """A bare parameter in the file needs the full name of ours."""
    if one.leaves:
        return ours
    return ours + (".bias" if one.pattern.endswith("bias") else ".weight")


def _turned(part: str, one: Stored, layout: Layout) -> bool:
    """Whether a stack of experts is stored [in, out]: told by which side is the hidden size."""
    if part.endswith("_bias") or len(one.shape) < 2:
        return False
    if part == "down":
        return one.shape[-1] == layout.hidden
    return one.shape[-2] == layout.hidden != one.shape[-1]
