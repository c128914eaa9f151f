"""Other values of a block's options, for blocks that compute something else than the reference does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onboard.arch.blocks import Attention, Layer, LayerNorms, MoE
from onboard.arch.spec import ArchSpec

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8)


@dataclass(frozen=True)
class Hypothesis:
    """One changed option of an architecture.

    Attributes:
        words: what it is, for people.
        change: the spec with the option changed in every layer that has it.
    """

    words: str
    change: Callable[[ArchSpec], ArchSpec]


def hypotheses(blocks: Sequence[str], spec: ArchSpec) -> Iterator[Hypothesis]:
    """What may be meant instead, for the blocks that differ; a value that the spec has already is left out.

    Args:
        blocks: names as in the rendered model (``layers.*.attn``, ``embed``, ``head``, ...).
        spec: of the tiny twin.
    """
    last = {name.rsplit(".", 1)[-1] for name in blocks}
    found: list[Hypothesis] = []
    if "attn" in last:
        found += _attention()
    if "mlp" in last:
        found += [*_mlp(), *_moe()]
    if any(name.endswith("norm") for name in last):
        found += _norms()
    if "embed" in last:
        root = math.sqrt(spec.hidden)
        found += [_embedding(value) for value in (1.0, root)]
    if "head" in last:
        found += [_head("softcap", None), _head("multiplier", 1.0)]
    if "layers.*" in blocks:
        found += [_layers("residual_scale", 1.0), _layers("parallel", False), *_attention(), *_mlp()]
    return (h for h in found if h.change(spec) != spec)


def each_layer(spec: ArchSpec, change: Callable[[Layer], Layer]) -> ArchSpec:
    """The spec with every kind of layer changed."""
    return replace(spec, kinds=tuple(change(kind) for kind in spec.kinds))


def _each_attention(change: Callable[[Attention], Attention]) -> Callable[[ArchSpec], ArchSpec]:
    def layer(one: Layer) -> Layer:
        return one if one.attention is None else replace(one, attention=change(one.attention))

    return lambda spec: each_layer(spec, layer)


def _attention() -> Iterator[Hypothesis]:
    def positions(name: str, value: Any) -> Hypothesis:
        def change(a: Attention) -> Attention:
            return replace(a, positions=replace(a.positions, **{name: value}))

        return Hypothesis(f"attention.positions.{name} is {value!r}", _each_attention(change))

    def option(name: str, value: Any) -> Hypothesis:
        return Hypothesis(f"attention.{name} is {value!r}", _each_attention(lambda a: replace(a, **{name: value})))

    for flag in (True, False):
        yield positions("interleaved", flag)
        yield positions("leading", flag)
        yield positions("reverse", flag)
    yield Hypothesis(
        "attention.positions.rotary_dim is the whole head",
        _each_attention(lambda a: replace(a, positions=replace(a.positions, rotary_dim=a.head_size_k))),
    )
    yield Hypothesis(
        "attention.scale is 1 / sqrt(head size)", _each_attention(lambda a: replace(a, scale=a.head_size_k**-0.5))
    )
    yield option("scale", 1.0)
    yield option("softcap", None)
    yield option("window", None)
    for place in ("before_rope", "after_rope"):
        yield Hypothesis(f"attention.qk_norm.place is {place}", _head_norm(place=place))
    for on in (True, False):
        yield Hypothesis(f"attention.qk_norm.plus_one is {on}", _head_norm(plus_one=on))
    yield option("sinks", False)


def _head_norm(*, place: str | None = None, plus_one: bool | None = None) -> Callable[[ArchSpec], ArchSpec]:
    """The norm of queries and keys, where there is one, with another place or kind of weight."""

    def change(a: Attention) -> Attention:
        if a.qk_norm is None:
            return a
        norm = a.qk_norm.norm if plus_one is None else replace(a.qk_norm.norm, plus_one=plus_one)
        return replace(a, qk_norm=replace(a.qk_norm, norm=norm, place=place or a.qk_norm.place))

    return _each_attention(change)


def _mlp() -> Iterator[Hypothesis]:
    for name in ACTIVATIONS:
        yield Hypothesis(f"mlp.activation is {name}", partial(each_layer, change=partial(_dense_acting, name)))
        yield Hypothesis(f"moe.activation is {name}", partial(each_layer, change=partial(_experts_acting, name)))


def _dense_acting(act: str, one: Layer) -> Layer:
    return one if one.mlp is None else replace(one, mlp=replace(one.mlp, activation=act))


def _experts_acting(act: str, one: Layer) -> Layer:
    return one if one.moe is None else replace(one, moe=replace(one.moe, activation=act))


def _moe() -> Iterator[Hypothesis]:
    def router(name: str, value: Any) -> Hypothesis:
        def change(one: Layer) -> Layer:
            moe: MoE | None = one.moe
            return one if moe is None else replace(one, moe=replace(moe, router=replace(moe.router, **{name: value})))

        return Hypothesis(f"moe.router.{name} is {value!r}", lambda spec: each_layer(spec, change))

    for score in ("softmax", "sigmoid"):
        yield router("score", score)
    for flag in (True, False):
        yield router("normalize", flag)
    yield router("scale", 1.0)
    for place in ("output", "input"):
        yield router("weight_on", place)


def _norms() -> Iterator[Hypothesis]:
    for flag in (True, False):
        yield Hypothesis(f"norms.plus_one is {flag}", partial(_with_norms, plus_one=flag))
    for kind in ("rms", "layernorm"):
        yield Hypothesis(f"norms.kind is {kind}", partial(_with_norms, kind=kind))
    for eps in EPSILONS:
        yield Hypothesis(f"norms.eps is {eps:g}", partial(_with_norms, eps=eps))


def _with_norms(spec: ArchSpec, **values: Any) -> ArchSpec:
    """The spec with options of all its norms outside the attention changed."""

    def places(norms: LayerNorms) -> LayerNorms:
        return replace(norms, **{k: replace(v, **values) for k, v in vars(norms).items() if v is not None})

    changed = each_layer(spec, lambda one: replace(one, norms=places(one.norms)))
    return replace(changed, final_norm=None if spec.final_norm is None else replace(spec.final_norm, **values))


def _embedding(value: float) -> Hypothesis:
    words = "embedding.multiplier is 1" if value == 1.0 else "embedding.multiplier is sqrt(hidden)"

    def change(spec: ArchSpec) -> ArchSpec:
        number = 1.0 if value == 1.0 else math.sqrt(spec.hidden)
        return replace(spec, embedding=replace(spec.embedding, multiplier=number))

    return Hypothesis(words, change)


def _head(name: str, value: Any) -> Hypothesis:
    return Hypothesis(f"head.{name} is {value!r}", lambda spec: replace(spec, head=replace(spec.head, **{name: value})))


def _layers(name: str, value: Any) -> Hypothesis:
    return Hypothesis(f"{name} is {value!r}", lambda spec: each_layer(spec, lambda one: replace(one, **{name: value})))
