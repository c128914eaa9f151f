"""Pieces that every family's builder uses: sizes, norms, layer kinds, embedding and head."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from onboard.arch.blocks import Layer, Norm
from onboard.arch.spec import ArchSpec, Embedding, Head, Tower
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader
from onboard.facts.source import Source
from vllm_neuron.errors import ConfigError, UnsupportedError

MAX_LAYERS = 100_000
MAX_WIDTH = 2**24
S = TypeVar("S", bound=Hashable)


def layer_count(r: Reader) -> int:
    """How many layers."""
    return r.integer("num_hidden_layers", "layers", maximum=MAX_LAYERS)


def hidden_size(r: Reader) -> int:
    """H."""
    return r.integer("hidden_size", "hidden", maximum=MAX_WIDTH)


def heads(r: Reader) -> tuple[int, int]:
    """Query heads and KV heads.

    Raises:
        ConfigError: the KV heads do not divide the query heads.
    """
    n = r.integer("num_attention_heads", "attention.heads", maximum=MAX_WIDTH)
    k = r.maybe_integer("num_key_value_heads", "attention.kv_heads", maximum=MAX_WIDTH)
    if k is None:
        k = n
    if n % k:
        raise r.wrong("num_key_value_heads", k, f"a divisor of the {n} query heads")
    return n, k


def causal_only(r: Reader) -> None:
    """Stop for a variant whose tokens see later ones; note one that does so for image tokens only.

    Raises:
        UnsupportedError: ``use_bidirectional_attention`` for all tokens.
    """
    value = r.find("use_bidirectional_attention")[0]
    if value in (True, "all"):
        raise UnsupportedError(r.prefix + "use_bidirectional_attention", value, "a causal decoder",
                               "This looks like an encoder or an embedding model.")  # fmt: skip
    if value:
        r.notes.append(f"use_bidirectional_attention={value!r:.40}: image tokens see each other; text stays causal")


def head_size(r: Reader, n: int, hidden: int) -> int:
    """D: as given, else hidden / heads.

    Raises:
        ConfigError: not given, and the heads do not divide the hidden size.
    """
    given = r.maybe_integer("head_dim", maximum=MAX_WIDTH)
    _, source = r.find("head_dim")
    if given is not None:
        if hidden % n:
            r.notes.append(
                f"hidden size {hidden} is not a multiple of {n} heads; with head_dim {given} given this is sound, "
                "but the reference (transformers) may refuse the config"
            )
        size = given
    elif hidden % n:
        raise ConfigError(
            r.prefix + "head_dim",
            None,
            f"a value, since hidden_size {hidden} is not a multiple of num_attention_heads {n}",
            "Add head_dim to the config.",
        )
    else:
        size = hidden // n
        source = source if source.kind == "null" else Source("derived", "hidden_size / num_attention_heads")
    r.record("attention.head_size_k", source)
    r.record("attention.head_size_v", source)
    return size


def decide(r: Reader, choice: bool | str, at: str) -> bool:
    """A trait that is fixed for the family, or that ``"?key"`` leaves to the config."""
    if isinstance(choice, str):
        return r.flag(choice.removeprefix("?"), at)
    r.known(at)
    return choice


def norm(r: Reader, family: Family, at: str = "norms") -> Norm:
    """The family's ordinary norm with the config's epsilon."""
    if family.eps is not None:
        eps: float | None = family.eps
        r.use(*r.spellings("norm_eps"))
        r.known(f"{at}.eps")
    else:
        eps = r.maybe_decimal(family.eps_key, f"{at}.eps", minimum=0.0)
    r.known(f"{at}.kind", f"{at}.plus_one", f"{at}.bias")
    if family.norm == "layernorm":
        return Norm("layernorm", eps, plus_one=family.plus_one, bias=family.norm_bias, weight=family.norm_weight)
    return Norm("rms", eps, plus_one=family.plus_one, weight=family.norm_weight)


def activation(r: Reader, family: Family, at: str = "mlp.activation") -> str:
    """The name of the activation, after the family's own reading of it.

    Raises:
        ConfigError: none is given or known.
    """
    name = r.maybe_text("hidden_act", at) or r.defaults.get("hidden_act")
    if name is None:
        raise r.wrong("hidden_act", None, "the name of an activation")
    changed = dict(family.act_is).get(name)
    if changed is not None:
        r.notes.append(f"activation {name!r} means {changed!r} in {family.model_type} models")
    return CANONICAL_ACTIVATIONS.get(changed or name, changed or name)


CANONICAL_ACTIVATIONS = {"swish": "silu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
                         "gelu_fast": "gelu_tanh", "relu_squared": "relu2"}  # fmt: skip


def distinct(signatures: Sequence[S], make: Callable[[S], Layer]) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """Distinct layers in order of first use, and the index of each layer's; ``make`` runs once per signature."""
    kinds: list[Layer] = []
    seen: dict[S, int] = {}
    for signature in signatures:
        if signature not in seen:
            layer = make(signature)
            if layer in kinds:
                seen[signature] = kinds.index(layer)
            else:
                seen[signature] = len(kinds)
                kinds.append(layer)
    return tuple(kinds), tuple(seen[s] for s in signatures)


def regroup(spec: ArchSpec, layers: Sequence[Layer]) -> ArchSpec:
    """The spec with these layers in place of its own."""
    kinds, index = distinct(layers, lambda one: one)
    return dataclasses.replace(spec, kinds=kinds, layer_kinds=index)


def each(spec: ArchSpec, change: Callable[[Layer], Layer]) -> ArchSpec:
    """The spec with every layer changed."""
    return regroup(spec, [change(one) for one in spec])


def embedding(r: Reader, family: Family, hidden: int) -> Embedding:
    """The token table with the family's multiplier."""
    vocab = r.integer("vocab_size", "embedding.vocab", maximum=2**31)
    at = "embedding.multiplier"
    scale = 1.0
    if family.embed_scale is not None and family.embed_scale.startswith("sqrt"):
        switch = family.embed_scale.removeprefix("sqrt?")
        if family.embed_scale == "sqrt":
            scale = math.sqrt(hidden)
            r.known(at)
        else:
            scale = math.sqrt(hidden) if r.flag(switch) else 1.0
            r.derived(at, f"sqrt(hidden_size) if {switch}")
    elif family.embed_scale is not None:
        scale = r.maybe_decimal(family.embed_scale.removeprefix("?"), at) or 1.0
    else:
        r.known(at)
    return Embedding(vocab, hidden, scale, norm=norm(r, family, "embedding.norm") if family.embed_norm else None)


def tied(r: Reader) -> bool:
    """Whether the head is the embedding: the section's word, else the whole config's, else the family's."""
    outer = r.top.get("tie_word_embeddings")
    if r.has("tie_word_embeddings") or r.top is r.text or outer is None:
        value = r.flag("tie_word_embeddings", "head.tied")
        if r.top is not r.text and type(outer) is bool and outer != value:
            r.warn(f"tie_word_embeddings={outer} at the top contradicts {value} in {r.prefix[:-1]}; {value} wins")
        return value
    if type(outer) is not bool:
        raise ConfigError("tie_word_embeddings", outer, "true or false", "Correct the config.")
    r.record("head.tied", Source("explicit", "tie_word_embeddings"))
    return outer


def head(r: Reader, family: Family) -> Head:
    """The output projection with the family's soft cap and multiplier."""
    multiplier = 1.0
    if family.logit_scale is not None:
        key = family.logit_scale[1:]
        value = r.maybe_decimal(key, "head.multiplier")
        if value is not None and abs(value) < 1e-30:
            raise r.wrong(key, value, "a number other than 0")
        multiplier = 1.0 if value is None else (1.0 / value if family.logit_scale[0] == "/" else value)
    else:
        r.known("head.multiplier")
    cap = r.maybe_decimal("final_logit_softcapping", "head.softcap", minimum=0.0) if family.softcaps else None
    same = tied(r)
    if same and family.untied:
        same = False
        r.notes.append(f"tie_word_embeddings is true, but transformers' code for {family.model_type} does not tie")
    return Head(same, decide(r, family.head_bias, "head.bias"), multiplier, cap or None)


def residual_scale(r: Reader, family: Family) -> float:
    """What multiplies each addition to the residual."""
    if family.residual is None:
        return 1.0
    value = r.maybe_decimal(family.residual, "residual_scale")
    return 1.0 if value is None else value


def dtype(r: Reader) -> str | None:
    """The checkpoint's dtype without "torch.", or None: unspecified. Looked for in the section, then at the top."""
    values: dict[str, str] = {}
    for where, section in ((r.prefix, r.text), ("", r.top)):
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            r.use(key)
            if value is None or (where == "" and key in values):
                continue
            if not isinstance(value, str):
                raise ConfigError(where + key, value, "the name of a dtype", "Correct the config.")
            values.setdefault(where + key, value.removeprefix("torch."))
    if not values:
        written = next((w + k for w, s in ((r.prefix, r.text), ("", r.top)) for k in ("dtype", "torch_dtype")
                        if k in s), None)  # fmt: skip
        r.record("dtype", Source("null", written) if written else Source("family", None))
        return None
    key, winner = next(iter(values.items()))
    for other, value in values.items():
        if value != winner:
            r.warn(f"{other}={value} contradicts {key}={winner}; {key} wins")
    r.record("dtype", Source("explicit", key))
    return winner


def finish(
    r: Reader,
    family: Family,
    kinds: tuple[Layer, ...],
    layer_kinds: tuple[int, ...],
    *,
    emb: Embedding | None = None,
    final_norm: Norm | None = None,
    towers: tuple[Tower, ...] = (),
) -> ArchSpec:
    """The whole spec around the layers."""
    hidden = hidden_size(r)
    return ArchSpec(
        hidden=hidden,
        embedding=emb or embedding(r, family, hidden),
        kinds=kinds,
        layer_kinds=layer_kinds,
        final_norm=final_norm or (norm(r, family, "final_norm") if family.final_norm else None),
        head=head(r, family),
        max_positions=r.maybe_integer("max_position_embeddings", "max_positions"),
        dtype=dtype(r),
        predict_layers=r.maybe_integer("num_nextn_predict_layers", "predict_layers", minimum=0) or 0,
        towers=towers,
    )
