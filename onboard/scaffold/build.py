"""The expressions of one model: every block's text, from the wirings of its config and of its tiny twins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from onboard.scaffold.calls import Call, Tree, Unbound, Unifier
from onboard.scaffold.expressions import Example, Search
from onboard.scaffold.rotating import Settings, keys_of, settings
from onboard.scaffold.study import Twin, merged_hints
from onboard.scaffold.wiring import Open, Wiring, wire

T = TypeVar("T")
NORMS = ("attn_norm", "post_attn_norm", "mlp_norm", "post_mlp_norm")
BLOCKS = ("attn_norm", "attn", "post_attn_norm", "mlp_norm", "mlp", "post_mlp_norm", "layer_input")
IDENTITY = Call("nn.Identity")
FRAME = ("embed", "positions", "embed_norm", "per_layer", "norm", "head")


@dataclass(frozen=True)
class Built:
    """The texts.

    Attributes:
        twins: the configs that all of it holds for, the model's own first.
        refused: the variants that it does not hold for.
        frame, layer: name -> tree, for the blocks that exist.
        scale: of what is added to the residual, or None.
        scalar: a stored scalar multiplies a layer's output.
        rotary: the settings of the ``rotary`` field.
        wiring: of the model's own config.
        whole: name -> tree of what the frame class reads (``max_position_embeddings`` and others).
        open: what no block computes.
        incomplete: some blocks could not be written at all.
    """

    twins: tuple[Twin, ...]
    refused: tuple[Twin, ...]
    frame: dict[str, Tree]
    layer: dict[str, Tree]
    scale: Tree | None
    scalar: bool
    rotary: Settings | None
    wiring: Wiring
    wirings: tuple[Wiring, ...]
    whole: dict[str, Tree]
    open: tuple[Open, ...]
    incomplete: bool = False


def build(twins: Sequence[Twin]) -> Built:
    """Texts that hold for the model's own config and for as many variants as can be.

    A variant that can't be said in the same code is in ``refused``; a block that no expression gives is open.
    """
    kept = list(twins[:2])
    try:
        base = _build(kept, ())
    except Unbound:
        return _build(kept, tuple(twins[2:]), tolerant=True)
    refused: list[Twin] = []
    for twin in twins[2:]:
        try:
            _build([*kept[:2], twin], ())
        except Unbound:
            refused.append(twin)
        else:
            kept.append(twin)
    while len(kept) > 2:
        try:
            return _build(kept, tuple(refused))
        except Unbound:
            refused.append(kept.pop(_odd_one(kept)))
    return _build(kept, tuple(refused)) if refused else base


def _odd_one(kept: Sequence[Twin]) -> int:
    """Which variant keeps the others from being said in one code; the last one when it is not one alone."""
    for index in range(2, len(kept)):
        try:
            _build([*kept[:index], *kept[index + 1 :]], ())
        except Unbound:
            continue
        return index
    return len(kept) - 1


def _build(twins: Sequence[Twin], refused: tuple[Twin, ...], *, tolerant: bool = False) -> Built:
    wirings = [wire(t.spec, keys_of(t)) for t in twins]
    for path, each in (("layers", [w.shape for w in wirings]), ("attention.storage", [_storage(t) for t in twins])):
        if len(set(each)) > 1 and not tolerant:
            raise Unbound(path, each)
    names = [n for n in twins[0].env if all(n in t.env for t in twins)]
    hints = merged_hints(twins)
    frame_unifier = Unifier(Search(names), hints, layered=False)
    layer_unifier = Unifier(Search(names), hints)
    examples = [t.example() for t in twins]
    layered = [e for t in twins for e in t.examples()]
    per_layer = [layer for w in wirings for layer in w.layers]
    gaps = _Gaps(tolerant)
    frame = _trees(frame_unifier, examples, [w.frame for w in wirings], FRAME, gaps)
    layer = _trees(layer_unifier, layered, per_layer, BLOCKS, gaps)
    scales = [one["residual_scale"] for one in per_layer]
    scaled = any(s != 1.0 for s in scales)
    return Built(
        twins=tuple(twins),
        refused=refused,
        frame=frame,
        layer=layer,
        scale=gaps.made(lambda: layer_unifier.unify(layered, scales, "residual_scale")) if scaled else None,
        scalar=any(one["output_scalar"] for one in per_layer),
        rotary=gaps.made(lambda: settings(frame_unifier, twins, wirings)),
        wiring=wirings[0],
        wirings=tuple(wirings),
        whole=_whole(frame_unifier, twins, examples, gaps),
        open=tuple(dict.fromkeys([*(o for w in wirings[:2] for o in w.open), *gaps.found])),
        incomplete=bool(gaps.found),
    )


class _Gaps:
    """Values that no expression gives: an error, or collected."""

    def __init__(self, tolerant: bool) -> None:
        self.tolerant = tolerant
        self.found: list[Open] = []

    def made(self, make: Callable[[], T]) -> T | None:
        """What ``make`` gives, or None where it is not bound.

        Raises:
            Unbound: not tolerant.
        """
        try:
            return make()
        except Unbound as error:
            if not self.tolerant:
                raise
            self.found.append(Open(f"{error.path} as the config has it"))
            return None


def _storage(twin: Twin) -> tuple[Any, ...]:
    """How the attention is stored; one checkpoint table serves one way."""
    found = ((k.attention.storage, k.attention.gate_from) for k in twin.spec.kinds if k.attention is not None)
    return tuple(sorted(set(found)))


def _trees(
    unifier: Unifier,
    examples: Sequence[Example],
    blocks: Sequence[dict[str, Any]],
    names: Sequence[str],
    gaps: _Gaps,
) -> dict[str, Tree]:
    """The blocks that exist in any example."""
    trees: dict[str, Tree] = {}
    for name in names:
        values = [one[name] for one in blocks]
        if any(v is not None for v in values):
            if name in NORMS:
                values = [IDENTITY if v is None else v for v in values]
            tree = gaps.made(partial(unifier.unify, examples, values, name))
            trees |= {} if tree is None else {name: tree}
    return trees


def _whole(unifier: Unifier, twins: Sequence[Twin], examples: Sequence[Example], gaps: _Gaps) -> dict[str, Tree]:
    values: dict[str, tuple[str, list[Any]]] = {
        "vocab_size": ("embedding.vocab", [t.spec.embedding.vocab for t in twins]),
        "num_hidden_layers": ("layers", [t.spec.layers for t in twins]),
        "max_position_embeddings": ("max_positions", [t.spec.max_positions for t in twins]),
        "tie_word_embeddings": ("head.tied", [t.spec.head.tied for t in twins]),
    }
    trees = {}
    for name, (path, each) in values.items():
        tree = gaps.made(partial(unifier.unify, examples, each, path))
        trees[name] = Tree(repr(each[0])) if tree is None else tree
    return trees


def local_conditions(trees: Sequence[Tree]) -> list[tuple[str, str]]:
    """(name, condition) for the conditions that come back, named after what they say."""
    counts = Counter(c for tree in trees for c in tree.conditions)
    names: list[tuple[str, str]] = []
    for condition, count in counts.items():
        if count > 1:
            names.append((_name(condition, {n for n, _ in names}), condition))
    return names


WORDS = (
    ("sliding_attention", "sliding"),
    ("full_attention", "full"),
    ("chunked_attention", "chunked"),
    ("no_rope", "turning"),
    ("sparse", "sparse"),
    ("dense", "dense"),
    ("moe", "sparse"),
)


def _name(condition: str, taken: set[str]) -> str:
    word = next((name for text, name in WORDS if text in condition), "special")
    while word in taken:
        word += "_too"
    return word
