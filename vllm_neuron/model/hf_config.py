"""Reading a Hugging Face config object without a silent default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_neuron.errors import ConfigError, UnsupportedError

_MISSING = object()


def require(hf_config: Any, name: str) -> Any:
    """A field that the model can't do without.

    Raises:
        ConfigError: the field is absent or null.
    """
    value = getattr(hf_config, name, None)
    if value is None:
        raise ConfigError(f"config.{name}", value, "a value", "Add it to the model's config.json.")
    return value


def refuse_unless(hf_config: Any, name: str, *allowed: Any) -> None:
    """Stop when an optional field asks for something that the model's code does not do.

    Args:
        hf_config: the config; a field that it lacks passes.
        name: the field.
        allowed: values that change nothing.

    Raises:
        UnsupportedError: naming field and value.
    """
    value = getattr(hf_config, name, _MISSING)
    if value is not _MISSING and not any(_same(value, each) for each in allowed):
        expected = " or ".join(repr(a) for a in allowed)
        raise UnsupportedError(f"config.{name}", value, expected, "This model's code does not implement it.")


def refuse_other_kinds(hf_config: Any, name: str, *known: str) -> None:
    """Stop when a field names a kind (of a layer, of a method) that the model's code does not tell apart.

    Args:
        hf_config: the config; a field that it lacks, or that is null, passes.
        name: a field that holds a name or a list of names.
        known: the kinds that the code was made for.

    Raises:
        UnsupportedError: naming the field and the kind.
    """
    value = getattr(hf_config, name, None)
    for each in value if isinstance(value, list | tuple) else (value,):
        if isinstance(each, str) and each not in known:
            expected = " or ".join(map(repr, known))
            raise UnsupportedError(f"config.{name}", each, expected, "This model's code does not implement it.")


# What some family computes by these names; a config of another family that has them is not of that family.
FOREIGN = (
    "attention_multiplier",
    "attn_logit_softcapping",
    "clip_qkv",
    "embedding_multiplier",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "qk_norm",
    "residual_multiplier",
    "scale_emb",
    "use_qk_norm",
)


def refuse_foreign(hf_config: Any, *own: str) -> None:
    """Stop when a config asks for what only other families compute, or for a weight layout that is not read.

    Args:
        hf_config: the config.
        own: names of :data:`FOREIGN` that the model's code honours.

    Raises:
        UnsupportedError: naming field and value.
    """
    for name in FOREIGN:
        if name not in own:
            refuse_unless(hf_config, name, None, 1, 1.0, False)
    refuse_unless(hf_config, "pretraining_tp", 1, None)
    # "vision" lets the tokens of an image see each other; there are none in a text.
    refuse_unless(hf_config, "use_bidirectional_attention", False, None, "vision")


def refuse_partial_rotary(hf_config: Any) -> None:
    """Stop when a config wants a part of each head turned and transformers' code of the family turns all of it.

    Raises:
        UnsupportedError: naming field and value.
    """
    refuse_unless(hf_config, "partial_rotary_factor", None, 1.0)
    settings = getattr(hf_config, "rope_parameters", None) or {}
    for block in (settings, *(v for v in settings.values() if isinstance(v, Mapping))):
        if block.get("partial_rotary_factor", 1.0) not in (None, 1.0):
            raise UnsupportedError(
                "rope_parameters.partial_rotary_factor", block["partial_rotary_factor"], "1.0 or none"
            )


def _same(value: Any, other: Any) -> bool:
    """Equal, and not a boolean that happens to equal a number."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def head_size(hf_config: Any) -> int:
    """``head_dim``, or ``hidden_size / num_attention_heads`` when it is absent or null.

    Raises:
        ConfigError: ``head_dim`` is not given and the heads do not divide the hidden size.
    """
    given = getattr(hf_config, "head_dim", None)
    if given is not None:
        return int(given)
    hidden, heads = require(hf_config, "hidden_size"), require(hf_config, "num_attention_heads")
    if hidden % heads:
        raise ConfigError("config.head_dim", None, f"a value, since {heads} heads do not divide hidden_size {hidden}")
    return hidden // heads


def rope_parameters(hf_config: Any, layer_type: str | None = None) -> Mapping[str, Any]:
    """The rotary settings, of one layer type where the config has a block for each.

    Raises:
        ConfigError: there are none, or none of that layer type.
    """
    parameters = getattr(hf_config, "rope_parameters", None)
    if not parameters:
        raise ConfigError("config.rope_parameters", parameters, "rotary settings")
    if layer_type is None:
        return parameters
    if layer_type not in parameters:
        raise ConfigError("config.rope_parameters", sorted(parameters), f"a block named {layer_type}")
    return parameters[layer_type]


def plain_rope_base(hf_config: Any) -> float:
    """``rope_theta`` of a model whose rotary positions are not scaled.

    Raises:
        ConfigError: it is missing.
        UnsupportedError: the settings ask for a scaling.
    """
    settings = rope_parameters(hf_config)
    kind, base = settings.get("rope_type", "default"), settings.get("rope_theta")
    if kind != "default":
        message = "This model's code does not implement it."
        raise UnsupportedError("config.rope_parameters.rope_type", kind, "'default'", message)
    if base is None:
        raise ConfigError("config.rope_parameters.rope_theta", base, "a value", "Add it to the model's config.json.")
    return float(base)


def latent_scale(hf_config: Any) -> float:
    """Factor on the scores of latent attention: ``1 / sqrt(nope + rope size)``, times yarn's magnitude squared where
    the rotary settings name ``mscale_all_dim`` (transformers 5.19, models/deepseek_v3).

    Raises:
        ConfigError: a size or the settings are missing.
    """
    size = require(hf_config, "qk_nope_head_dim") + require(hf_config, "qk_rope_head_dim")
    settings = rope_parameters(hf_config)
    over_all, factor = settings.get("mscale_all_dim"), settings.get("factor")
    if settings.get("rope_type", "default") == "default" or not over_all or not factor or factor <= 1:
        return float(size**-0.5)
    return float(size**-0.5 * (0.1 * over_all * math.log(factor) + 1.0) ** 2)


def per_layer(hf_config: Any, name: str) -> tuple[Any, ...]:
    """A field's value for each layer. Where a ``per_layer_config`` makes it vary, reading the field itself raises.

    Raises:
        ConfigError: the field is absent or null in a layer.
    """
    layers = range(require(hf_config, "num_hidden_layers"))
    each = getattr(hf_config, "per_layer_config", None)
    values = tuple(getattr(each[i] if each else hf_config, name, None) for i in layers)
    if None in values:
        raise ConfigError(f"config.{name}", None, "a value in every layer", "Add it to the model's config.json.")
    return values


def shared_kv_layers(layer_types: Sequence[str], shared: int) -> tuple[int | None, ...]:
    """For each layer the earlier one whose cache it reads, None for its own: the last ``shared`` layers read that of
    the last layer of their type before them (Gemma 3n and 4).

    Raises:
        ConfigError: ``shared`` leaves no layer, or none of a type that a layer has to read.
    """
    first = len(layer_types) - shared
    if not 0 < first <= len(layer_types):
        raise ConfigError("config.num_kv_shared_layers", shared, f"0 to {len(layer_types) - 1}")
    owner = {kind: i for i, kind in enumerate(layer_types[:first])}
    absent = sorted(set(layer_types[first:]) - set(owner))
    if absent:
        raise ConfigError("config.num_kv_shared_layers", shared, f"a layer of type {absent[0]} before the shared ones")
    return (None,) * first + tuple(owner[kind] for kind in layer_types[first:])
